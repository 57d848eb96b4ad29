// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package cluster asks Nomad's API: why an allocation's task is stopped, what became of the
// owner of an object, and whether anybody will come for one. What follows from an answer is
// decided by pure functions (Decide, orphan).
//
// Two answers of Nomad look alike and are told apart here: an allocation that is not there, and
// one that a token may not see, are both 404. So 404 counts only with a token that Nomad lets
// look for a job in that namespace, where the refusal is 403.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// limit is the time of a whole question.
const limit = 2 * time.Second

var _ engine.Cluster = (*Client)(nil)

// Alloc is part of engine.Cluster.
func (c *Client) Alloc(ctx context.Context, a engine.Asker, o endpoint.Owner) engine.Alloc {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	v := c.view(ctx, a, o.Alloc)
	switch {
	case v.silence != nil:
		return engine.Alloc{}
	case v.alloc == nil && (o.Node == a.Node || c.hasNode(ctx, "", o.Node, c.tokens(&a)...)):
		return engine.Alloc{State: engine.NotFound}
	case v.alloc == nil:
		return engine.Alloc{State: engine.Foreign}
	}
	got := engine.Alloc{
		State:  stateOf(v.alloc.ClientStatus),
		Lost:   lost(v.alloc.DesiredStatus, v.alloc.ClientStatus, v.alloc.DesiredDescription),
		Wanted: v.alloc.DesiredStatus == api.AllocDesiredStatusRun,
		Canary: v.alloc.DeploymentStatus != nil && v.alloc.DeploymentStatus.Canary,
		Job:    typeOf(v.alloc.Job),
	}
	if got.Lost {
		got.State = engine.Ended
	}
	if j := v.alloc.Job; j != nil && j.CreateIndex != nil {
		got.Index = *j.CreateIndex
	}
	if j := v.alloc.Job; j != nil && j.Region != nil {
		got.Region = *j.Region
	}
	got.Stopped = !got.Lost && replacedOnPurpose(v.alloc)
	if t := v.alloc.TaskStates[a.Task]; t != nil {
		// the task of a drained allocation is dead as well when it could not be released and runs on
		got.Told = t.State == "dead" && (got.Wanted || t.Failed)
	}
	return got
}

func stateOf(client string) engine.AllocState {
	switch client {
	case api.AllocClientStatusPending, api.AllocClientStatusRunning:
		return engine.Alive
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return engine.Ended
	case api.AllocClientStatusUnknown:
		return engine.Disconnected
	}
	return engine.NoAnswer
}

func typeOf(j *api.Job) endpoint.JobType {
	if j == nil || j.Type == nil {
		return endpoint.Unknown
	}
	return endpoint.JobType(*j.Type)
}

// Why is part of engine.Cluster.
func (c *Client) Why(ctx context.Context, a engine.Asker, o engine.StopOptions) engine.Decision {
	return Decide(c.WhyStopped(ctx, a), o)
}

// WhyStopped asks what Nomad says of a's allocation, which is to be stopped. It returns within 2 s.
func (c *Client) WhyStopped(ctx context.Context, a engine.Asker) Answer {
	v := c.view(ctx, a, a.Alloc)
	if v.silence != nil {
		return Answer{Silence: v.silence.Error()}
	}
	answer := Answer{Purged: v.job == nil, Job: typeOf(v.job), Stopped: v.job != nil && is(v.job.Stop)}
	if v.alloc != nil {
		answer.Alloc = &Allocation{
			Desired: v.alloc.DesiredStatus, Client: v.alloc.ClientStatus, Because: v.alloc.DesiredDescription,
			Migrate:     is(v.alloc.DesiredTransition.Migrate),
			NoPlacement: is(v.alloc.DesiredTransition.MigrateDisablePlacement),
			ByHand:      v.alloc.DesiredTransition.NoShutdownDelay != nil,
			Replaced:    replaced(v.alloc, v.job),
		}
	}
	return answer
}

// replaced reports whether an allocation that is stopped as not needed still has a place in its job, whose version is
// the same: another allocation of its name is kept then, after its node was disconnected. Nomad gives that reason to
// the replacement alone, not with reconcile = "keep_replacement" to the original.
func replaced(a *api.Allocation, job *api.Job) bool {
	if job == nil || a.Job == nil || job.Version == nil || a.Job.Version == nil || *job.Version != *a.Job.Version {
		return false
	}
	if a.DeploymentStatus != nil && a.DeploymentStatus.Canary {
		return false
	}
	g := job.LookupTaskGroup(a.TaskGroup)
	return a.DesiredDescription == becauseNotNeeded && g != nil && g.Disconnect != nil && g.Count != nil &&
		indexOf(a.Name) >= 0 && indexOf(a.Name) < *g.Count
}

// indexOf is the index in an allocation's name, job.group[index], below 0 if there is none.
func indexOf(name string) int {
	n, err := strconv.Atoi(strings.TrimSuffix(name[strings.LastIndex(name, "[")+1:], "]"))
	if err != nil {
		return -1
	}
	return n
}

func is(b *bool) bool { return b != nil && *b }

// view is what a token shows: an allocation and its job, each nil where Nomad does not have it.
type view struct {
	alloc   *api.Allocation
	job     *api.Job
	silence error // why it is not known
}

// view looks with each of the asker's tokens until one shows it, for 2 s in all.
func (c *Client) view(ctx context.Context, a engine.Asker, id string) view {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var silent []string
	for _, by := range c.tokens(&a) {
		v := view{silence: by.err}
		if v.silence == nil {
			v = c.look(ctx, by, a, id)
		}
		if v.silence == nil {
			return v
		}
		silent = append(silent, by.name+": "+v.silence.Error())
	}
	return view{silence: errors.New(strings.Join(silent, "; "))}
}

func (c *Client) look(ctx context.Context, by token, a engine.Asker, id string) (v view) {
	v.alloc, v.silence = c.allocation(ctx, by, "", id)
	if v.silence != nil {
		return v
	}
	v.job, v.silence = c.job(ctx, by, "", a.Namespace, a.Job)
	return v
}

func (c *Client) allocation(ctx context.Context, by token, region, id string) (*api.Allocation, error) {
	return ask(ctx, c, by, func(n *api.Client, q *api.QueryOptions) (*api.Allocation, error) {
		q.Region = region
		got, _, err := n.Allocations().Info(url.PathEscape(id), q)
		if err == nil && got.ID != id {
			err = errOther
		}
		return got, err
	})
}

// job returns a job as it is now, nil if Nomad has none of this name. It is an error where the token may not see the
// namespace.
func (c *Client) job(ctx context.Context, by token, region, namespace, id string) (*api.Job, error) {
	return ask(ctx, c, by, func(n *api.Client, q *api.QueryOptions) (*api.Job, error) {
		q.Namespace, q.Region = namespace, region
		got, _, err := n.Jobs().Info(id, q)
		if err == nil && (got.ID == nil || *got.ID != id) {
			err = errOther
		}
		return got, err
	})
}

// Fits returns an error if Nomad tells that an allocation is not of the job, group, index and task of a key. Without an
// answer it is nil.
func (c *Client) Fits(ctx context.Context, k endpoint.Key, id string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	by := c.tokens(nil)[0]
	if by.err != nil {
		return nil
	}
	a, err := c.allocation(ctx, by, k.Region, id)
	switch {
	case err != nil:
		return nil
	case a == nil:
		return fmt.Errorf("Nomad has no allocation %s", id)
	case a.Namespace != k.Namespace || a.JobID != k.Job || a.TaskGroup != k.Group || indexOf(a.Name) != k.Index:
		return fmt.Errorf("allocation %s is %s of namespace %s: it has no task %s", id, a.Name, a.Namespace, k)
	}
	return nil
}

// hasNode reports whether a token shows a node. Ids of nodes are unique: who has the node has, or had, what it owned.
func (c *Client) hasNode(ctx context.Context, region, id string, tokens ...token) bool {
	for _, by := range tokens {
		if by.err != nil || id == "" {
			continue
		}
		if got, err := c.node(ctx, by, region, id); err == nil && got != nil && got.ID == id {
			return true
		}
	}
	return false
}

// node returns a node, nil if Nomad has none of this id.
func (c *Client) node(ctx context.Context, by token, region, id string) (*api.Node, error) {
	return ask(ctx, c, by, func(n *api.Client, q *api.QueryOptions) (*api.Node, error) {
		q.Region = region
		got, _, err := n.Nodes().Info(url.PathEscape(id), q)
		return got, err
	})
}

var (
	errRefused = errors.New("Nomad does not show it to this token")
	errOther   = errors.New("does not answer as Nomad does")
)

// absent is how Nomad says that it has none. A proxy before it answers 404 too, such as while it has no server to ask.
var absent = regexp.MustCompile(`^(job|alloc|node|ACL token) not found\s*$`)

// ask asks each address in turn until one answers. An answer is what was asked for, nil where Nomad has none, or
// errRefused.
func ask[T any](ctx context.Context, c *Client, by token,
	question func(*api.Client, *api.QueryOptions) (*T, error)) (*T, error) {
	var silent []string
	addresses := c.addresses(by)
	for i, address := range addresses {
		n, err := c.client(address, by)
		if err == nil {
			// the first of several may not use up the time
			deadline, _ := ctx.Deadline()
			one, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(len(addresses)-i))
			var got *T
			got, err = question(n, (&api.QueryOptions{AuthToken: by.secret}).WithContext(one))
			cancel()
			var response api.UnexpectedResponseError
			errors.As(err, &response)
			switch code := response.StatusCode(); {
			case err == nil:
				c.answered(address)
				return got, nil
			case code == http.StatusNotFound && absent.MatchString(response.Body()):
				c.answered(address)
				return nil, nil
			case code == http.StatusForbidden, strings.Contains(response.Body(), "Unknown allocation"): // with a 500
				c.answered(address)
				return nil, errRefused
			}
		}
		silent = append(silent, "Nomad's API at "+address+" "+silence(err))
	}
	return nil, errors.New(strings.Join(silent, ", "))
}

// silence says why an address gave no answer. What Nomad says may have many lines.
func silence(err error) string {
	var response api.UnexpectedResponseError
	var network *net.OpError
	switch {
	case errors.As(err, &response):
		return fmt.Sprintf("failed (%d)", response.StatusCode())
	case errors.Is(err, errOther):
		return errOther.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "did not answer in time"
	case errors.As(err, &network):
		return "is not reached: " + network.Err.Error()
	}
	return "is not reached: " + err.Error()
}
