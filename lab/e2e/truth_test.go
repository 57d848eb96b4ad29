// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// truth is the node of one column of the table. Its dataset plugin has slots, and may use only the part of Nomad's API
// that the column allows. The node's server belongs to another agent, so it can report the node as lost.
type truth struct {
	*node  // Client returns the server's client
	server *truthServer
	column truthColumn
	own    *api.Client // the agent's own client
	slots  int         // how many slots the cells use so far
	token  string      // the file with the plugin's token
}

type truthColumn struct {
	name  string
	sees  bool   // the plugin frees a slot when its task has ended; otherwise at the next reservation
	rules string // the policy of the plugin's token; empty: no token
}

const (
	readNodes = `agent { policy = "read" } node { policy = "read" }`
	readJobs  = "\nnamespace \"*\" { capabilities = [\"read-job\"] }"
)

var truthColumns = []truthColumn{
	{name: "ok", sees: true, rules: readNodes + readJobs},
	{name: "no-token"},
	{name: "blind", rules: readNodes}, // Nomad returns 200 and an empty list of jobs
}

// truthRow is a row of the table: an event that may end a task.
type truthRow struct {
	name string
	body string // the end of the task's script; empty: sleep
	edit func(*api.Job, *api.Task)
	act  func(*testing.T, *truthCell) // nil: the phase acts on the node

	replaced bool // Nomad itself starts the next task in the slot
	lives    bool // the task does not end
}

const sleep = "exec sleep 600"

// truthRows has the rows of each phase. The rows of a phase run at the same time, because an event such as a drain
// affects all tasks of the node.
var truthRows = map[string][]truthRow{
	"jobs": {
		{name: "stop", act: func(t *testing.T, c *truthCell) { c.first.stop(t) }},
		{name: "stop -purge", act: func(t *testing.T, c *truthCell) {
			_, _, err := c.Client().Jobs().Deregister(*c.job.ID, true, nil)
			must.NoError(t, err)
		}},
		{name: "alloc stop", replaced: true, act: func(t *testing.T, c *truthCell) {
			_, err := c.Client().Allocations().Stop(c.first.stub(t), nil)
			must.NoError(t, err)
		}},
		{name: "job update", replaced: true, act: func(t *testing.T, c *truthCell) {
			c.job.TaskGroups[0].Tasks[0].Env = map[string]string{"VERSION": "2"}
			_, _, err := c.Client().Jobs().Register(c.job, nil)
			must.NoError(t, err)
		}},
		{name: "task fails", body: "while [ ! -e $GO ]; do sleep 0.1; done; exit 1",
			act: func(t *testing.T, c *truthCell) { touch(t, c.trigger()) }},
	},
	"plugin killed": {
		{name: "reserved", lives: true, edit: waitsForItsTemplate},
		{name: "held", lives: true},
		{name: "ended and in use"},
	},
	"drain": {{name: "node drain", replaced: true}},
	"agent killed": {
		{name: "agent SIGKILL and back", lives: true},
		{name: "agent down when the job ends", body: "while [ ! -e $GO ]; do sleep 0.1; done; exit 0"},
	},
	"lost": {{name: "node lost and back", body: "trap '' TERM INT; while :; do sleep 0.2; done"}},
}

// waitsForItsTemplate delays a task between the reservation of its devices and its start.
func waitsForItsTemplate(j *api.Job, task *api.Task) {
	task.Templates = []*api.Template{{
		EmbeddedTmpl: new(`{{ with nomadVar "nomad/jobs/` + *j.ID + `" }}{{ .go }}{{ end }}`), DestPath: new("local/go"),
	}}
}

// The columns run in parallel, each on its own node.
func TestSlots_AreReleasedOnlyByEvidence(t *testing.T) {
	testsupport.Long(t, "a table of faults on three nodes")
	needRootAgent(t)
	server := startTruthServer(t)
	t.Run("columns", func(t *testing.T) {
		var ready, over sync.WaitGroup
		ready.Add(len(truthColumns))
		over.Add(len(truthColumns))
		for _, column := range truthColumns {
			t.Run(column.name, func(t *testing.T) {
				t.Parallel()
				counted := sync.OnceFunc(ready.Done)
				defer counted()
				skip := sync.OnceFunc(over.Done)
				defer skip()
				n := newTruth(t, server, column)
				counted()
				ready.Wait()   // the server restarts after all nodes have joined it
				defer func() { // the end of a node stops the jobs of all nodes
					skip()
					over.Wait()
				}()
				n.secure(t)
				n.phase(t, "jobs", nil)
				n.ready(t, map[bool]string{true: "ok", false: "none"}[column.sees])
				n.phase(t, "plugin killed", func(t *testing.T, cells []*truthCell) {
					stuck := cells[2]
					dir, err := os.Open(filepath.Join(slotMounts, stuck.lease))
					must.NoError(t, err)
					t.Cleanup(func() { dir.Close() })
					stuck.first.stop(t)
					plugin := n.one(t, "dataset plugin", n.isDatasetPlugin)
					plugin.end(t)
					n.another(t, n.isDatasetPlugin, plugin)
					time.Sleep(truthSweeps)
					stuck.stands(t, "this process has it open")
					stuck.ask(t)
					stuck.second.placed(t, stuck.second.first, "")
					time.Sleep(truthSweeps)
					stuck.stands(t, "this process has it open")
					must.NoError(t, dir.Close())
				})
				n.phase(t, "drain", func(t *testing.T, cells []*truthCell) {
					n.drain(t, time.Minute)
					cells[0].released(t)
					n.eligible(t)
				})
				n.phase(t, "agent killed", func(t *testing.T, cells []*truthCell) {
					kill(t, n.node)
					touch(t, cells[1].trigger())
					testsupport.Eventually(t, "the end of the task", func() bool { return !cells[1].runs() })
					must.True(t, cells[0].runs())
					n.again(t)
					cells[0].first.held(t)
				})
				n.phase(t, "lost", func(t *testing.T, cells []*truthCell) {
					resume := n.process(t).pause(t)
					defer resume()
					testsupport.Within(t, 2*time.Minute, func() error {
						if status := cells[0].first.stub(t).ClientStatus; status != "lost" {
							return fmt.Errorf("the allocation is %s, not lost", status)
						}
						return nil
					})
					must.True(t, cells[0].runs())
					time.Sleep(truthSweeps)
					cells[0].stands(t, "the task of the lost node runs")
					// once the node is back, it kills the task, while another job already requests the slot
					cells[0].first.stop(t)
					cells[0].ask(t)
				})
			})
		}
	})
}

// truthSweeps is long enough for several sweeps: newTruth makes the plugin sweep every 4 s.
const truthSweeps = 12 * time.Second

// phase runs the rows of one phase. First, the task of each row gets a slot, and act runs. Then happens causes the
// phase's event of the node. At the end, each row is verified.
func (n *truth) phase(t *testing.T, name string, happens func(*testing.T, []*truthCell)) {
	t.Run(name, func(t *testing.T) {
		var cells []*truthCell
		for _, row := range truthRows[name] {
			c := &truthCell{truth: n, row: row, held: make(chan struct{}), slot: fmt.Sprintf("%s-%02d", n.column.name, n.slots)}
			n.slots++
			cells = append(cells, c)
			c.submit(t)
		}
		for _, c := range cells {
			c.hold(t)
		}
		for _, c := range cells {
			if c.row.act != nil {
				c.row.act(t, c)
			}
		}
		if happens != nil {
			happens(t, cells)
		}
		for _, c := range cells {
			t.Run(c.row.name, c.verify)
		}
	})
}

// truthCell is a cell of the table: one row on one column's node.
type truthCell struct {
	*truth
	row   truthRow
	slot  string // the slot's ID
	job   *api.Job
	first *alloc
	lease string // the slot's dataset for the first task
	held  chan struct{}

	second *truthCell // the next job for the slot
}

// slotMounts is where the plugin mounts slots.
const slotMounts = "/run/outrider/dataset/slots"

func (c *truthCell) trigger() string { return filepath.Join(c.dir, c.slot+".go") }

// leases returns the slot's mounted datasets, of which at most one is expected.
func (c *truthCell) leases(t *testing.T) (names []string) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(slotMounts, c.slot+".*"))
	must.NoError(t, err)
	for _, dir := range dirs {
		if mounted(dir) {
			names = append(names, filepath.Base(dir))
		}
	}
	return names
}

// mounted reports whether something is mounted at a directory.
func mounted(dir string) bool {
	var st, parent syscall.Stat_t
	return syscall.Stat(dir, &st) == nil && syscall.Stat(filepath.Dir(dir), &parent) == nil && st.Dev != parent.Dev
}

// submit submits a job that requests exactly this slot. Its task prints "fresh" if the slot is empty.
func (c *truthCell) submit(t *testing.T) {
	t.Helper()
	body := c.row.body
	if body == "" || c.first != nil {
		body = sleep
	}
	script := "[ -d /scratch ] && [ -z \"$(ls -A /scratch)\" ] && echo fresh; echo $NOMAD_ALLOC_ID >/scratch/trace; " +
		"GO=" + c.trigger() + "; " + body
	exact := func(d *api.RequestedDevice) {
		d.Constraints = append(d.Constraints,
			&api.Constraint{LTarget: "${device.ids}", Operand: "set_contains", RTarget: c.slot})
	}
	c.job = job(t, sh(script), withDevice("zfs/dataset/"+c.column.name, exact), func(j *api.Job, task *api.Task) {
		j.Type = new("service")
		task.KillTimeout = new(3 * time.Second)
		if c.row.edit != nil && c.first == nil {
			c.row.edit(j, task)
		}
	})
	_, _, err := c.Client().Jobs().Register(c.job, nil)
	must.NoError(t, err)
	c.first = &alloc{n: c.node, job: *c.job.ID}
}

// hold waits until the task runs and its slot has a dataset. A task that waits for a template only needs the dataset.
// From then on, guard watches the dataset.
func (c *truthCell) hold(t *testing.T) {
	t.Helper()
	c.placed(t, c.first, "")
	waits := c.row.edit != nil
	if !waits {
		c.first.running(t)
		c.first.says(t, "stdout", "fresh")
	}
	testsupport.Within(t, time.Minute, func() error {
		if all := c.leases(t); len(all) != 1 {
			return fmt.Errorf("leases: %v", all)
		} else if waits || c.runs() {
			c.lease = all[0]
			return nil
		}
		return errors.New("the task does not run")
	})
	if c.column.sees {
		testsupport.Within(t, time.Minute, func() error {
			time.Sleep(200 * time.Millisecond)
			file := filepath.Join(c.HostVolumePluginDir(), "dataset.hcl")
			out, err := exec.Command(dataset, "list", "-file", file).CombinedOutput()
			if err == nil && !bytes.Contains(out, []byte(c.first.id+"/main")) {
				err = fmt.Errorf("the holder of %s is not recorded:\n%s", c.lease, out)
			}
			return err
		})
	}
	watched := make(chan struct{})
	go c.guard(t, c.first.id, watched)
	t.Cleanup(func() { close(c.held); <-watched })
}

// placed waits until a's job has an allocation other than the one with the ID not, and stores the new ID in a.
func (c *truthCell) placed(t *testing.T, a *alloc, not string) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		list, _, err := c.Client().Jobs().Allocations(a.job, false, nil)
		for _, s := range list {
			if s.ID != not {
				a.id = s.ID
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("job %s has no allocation", a.job))
	})
}

// guard fails the test if the running task loses its files. On the host, the dataset may be unmounted and in the trash,
// because the mount in the task's namespace keeps the files.
func (c *truthCell) guard(t *testing.T, id string, done chan<- struct{}) {
	defer close(done)
	for {
		pause := 5 * time.Millisecond
		if !mounted(filepath.Join(slotMounts, c.lease)) {
			process := processOf(id)
			if process == "" {
				return
			}
			trace, err := os.ReadFile(filepath.Join(process, "root/scratch/trace"))
			lost := err != nil || strings.TrimSpace(string(trace)) != id
			if lost && processOf(id) == process { // the process has not ended in between
				t.Errorf("%s: the files of %s were removed while its task runs: %q, %v", c.row.name, id, trace, err)
				return
			}
			pause = 100 * time.Millisecond
		}
		select {
		case <-c.held:
			return
		case <-time.After(pause):
		}
	}
}

func (c *truthCell) runs() bool { return processOf(c.first.id) != "" }

// processOf returns the /proc directory of a process of an allocation, or "".
func processOf(id string) string {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, environ := range environs {
		if b, _ := os.ReadFile(environ); bytes.Contains(b, []byte("NOMAD_ALLOC_ID="+id+"\x00")) {
			return filepath.Dir(environ)
		}
	}
	return ""
}

func (c *truthCell) stands(t *testing.T, why string) {
	t.Helper()
	must.SliceContains(t, c.leases(t), c.lease, must.Sprintf("the dataset was released, but %s", why))
}

// verify checks the outcome that the row expects.
func (c *truthCell) verify(t *testing.T) {
	switch {
	case c.row.lives:
		time.Sleep(truthSweeps)
		c.stands(t, "the task has not ended")
		if c.row.edit != nil { // with this variable, the template lets the task start
			_, _, err := c.Client().Variables().Create(&api.Variable{Path: "nomad/jobs/" + *c.job.ID,
				Items: api.VariableItems{"go": "yes"}}, nil)
			must.NoError(t, err)
			c.first.running(t)
			c.first.says(t, "stdout", "fresh")
			c.stands(t, "the task runs")
		}
		c.first.stop(t)
	case c.second != nil:
		c.second.get(t)
		return
	case c.row.replaced:
		c.placed(t, c.first, c.first.id)
		c.first.running(t)
		c.first.says(t, "stdout", "fresh")
		c.taken(t)
		return
	}
	c.released(t)
	c.next(t)
}

// released waits until the task has ended. If the plugin can see the end, released waits until the slot is free;
// otherwise it checks that the slot is kept.
func (c *truthCell) released(t *testing.T) {
	t.Helper()
	testsupport.Eventually(t, "the end of the task", func() bool { return !c.runs() })
	if c.column.sees {
		testsupport.Eventually(t, "the immediate release", func() bool { return len(c.leases(t)) == 0 })
		return
	}
	time.Sleep(truthSweeps)
	c.stands(t, "the plugin can't see that its task has ended")
}

func (c *truthCell) next(t *testing.T) {
	t.Helper()
	c.ask(t)
	c.second.get(t)
}

// ask submits another job for the slot.
func (c *truthCell) ask(t *testing.T) {
	t.Helper()
	second := *c
	second.submit(t)
	c.second = &second
}

// get waits until the job has the slot, with a new dataset.
func (c *truthCell) get(t *testing.T) {
	t.Helper()
	c.placed(t, c.first, "")
	c.first.running(t)
	c.first.says(t, "stdout", "fresh")
	c.taken(t)
}

// taken checks that the new dataset is the only one of the slot.
func (c *truthCell) taken(t *testing.T) {
	t.Helper()
	all := c.leases(t)
	must.Len(t, 1, all)
	must.NotEq(t, c.lease, all[0])
}

func newTruth(t *testing.T, server *truthServer, column truthColumn) *truth {
	t.Helper()
	n := &truth{column: column, server: server}
	rows := 0
	for _, phase := range truthRows {
		rows += len(phase)
	}
	classes := strings.ReplaceAll(pool(t, column.name), class, fmt.Sprintf(`
  slots {
    count    = %d
    capacity = "16MiB"
  }
`, rows))
	n.token = filepath.Join(mkdir(t), "token")
	must.NoError(t, os.WriteFile(n.token, nil, 0o600))

	var target atomic.Pointer[url.URL]
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := target.Load()
		if to == nil {
			<-r.Context().Done()
			return
		}
		httputil.NewSingleHostReverseProxy(to).ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	t.Cleanup(proxy.CloseClientConnections)
	n.node = newNode(t, nodeOptions{
		classes: classes,
		slots: fmt.Sprintf("file = \"${host_volume_plugin_dir}/dataset.hcl\"\nsweep = \"4s\"\ngrace = \"20s\"\n"+
			"api {\n  address = %q\n  token_file = %q\n}", proxy.URL, n.token),
		of: server.node,
	})
	own, err := url.Parse(n.Address())
	must.NoError(t, err)
	target.Store(own)
	n.own, n.Agent = n.Client(), served{n.Agent, server.Client()}
	return n
}

// served is an agent whose Client returns the client of its server.
type served struct {
	agent.Agent
	client *api.Client
}

func (s served) Client() *api.Client { return s.client }

// secure turns ACLs on, and gives the plugin a token with the column's policy.
func (n *truth) secure(t *testing.T) {
	t.Helper()
	n.server.acls()
	if n.column.rules != "" {
		must.NoError(t, os.WriteFile(n.token, []byte(n.server.token(t, n.column.name, n.column.rules)), 0o600))
	}
	n.ready(t, "none")
}

// ready waits until the node is ready, and each of its device groups has the attribute "api" with the value evidence.
func (n *truth) ready(t *testing.T, evidence string) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		info, _, err := n.Client().Nodes().Info(n.id(), nil)
		if err != nil {
			return err
		}
		if info.Status != "ready" || info.SchedulingEligibility != "eligible" || !info.Drivers["exec-lite"].Healthy {
			return fmt.Errorf("the node is %s, %s", info.Status, info.SchedulingEligibility)
		}
		for _, g := range info.NodeResources.Devices {
			if a := g.Attributes["api"]; a == nil || a.StringVal == nil || *a.StringVal != evidence {
				return fmt.Errorf("%s has %v", g.Name, a)
			}
		}
		if len(info.NodeResources.Devices) == 0 {
			return errors.New("the node has no slots")
		}
		return nil
	})
}

// again starts the killed agent, and waits until it has registered.
func (n *truth) again(t *testing.T) {
	t.Helper()
	must.NoError(t, n.Start(t.Context()))
	testsupport.Within(t, time.Minute, func() error {
		self, err := n.own.Agent().Self()
		if err == nil {
			ago, parseErr := time.ParseDuration(self.Stats["client"]["last_heartbeat"])
			if parseErr != nil || ago > time.Minute {
				err = errors.New("the agent has not registered")
			}
		}
		return err
	})
}

// truthServer is the agent whose server all nodes use.
type truthServer struct {
	*node
	acls func() // turns ACLs on, once
}

const truthServerConfig = `
server {
  min_heartbeat_ttl = "5s"
  heartbeat_grace   = "30s" # a busy machine is not a lost one
}
`

func startTruthServer(t *testing.T) *truthServer {
	t.Helper()
	s := &truthServer{node: newNode(t, nodeOptions{config: truthServerConfig})}
	s.acls = sync.OnceFunc(func() {
		stop(t, s.node)
		config := keepAllocations + truthServerConfig + "acl {\n  enabled = true\n}\n"
		must.NoError(t, os.WriteFile(filepath.Join(s.dir, "extra.hcl"), []byte(config), 0o600))
		must.NoError(t, s.Start(t.Context()))
		testsupport.Within(t, time.Minute, func() error {
			token, _, err := s.Client().ACLTokens().Bootstrap(nil)
			if err == nil {
				s.Client().SetSecretID(token.SecretID)
			}
			return err
		})
	})
	return s
}

// token creates a token with a policy of these rules.
func (s *truthServer) token(t *testing.T, name, rules string) string {
	t.Helper()
	_, err := s.Client().ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Rules: rules}, nil)
	must.NoError(t, err)
	token, _, err := s.Client().ACLTokens().Create(&api.ACLToken{Type: "client", Policies: []string{name}}, nil)
	must.NoError(t, err)
	return token.SecretID
}
