// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// run is the host's record of one run of a task. The caller must hold the lock of all records to change it.
type run struct {
	Run                  // Followed and Alone are not set
	Hash        string   `json:"hash"`        // see ClaimRequest
	Saved       []byte   `json:"saved"`       // the state that the core needs to recover the task
	Interrupted []string `json:"interrupted"` // task ids of earlier, interrupted starts, whose tasks may be running
}

// State is the state of a run.
type State string

// The states of a run.
const (
	Starting State = "starting"
	Running  State = "running"
	Released State = "released" // its owner has given it up for the next owner
	Kept     State = "kept"     // an operator keeps it: nobody can claim or end it
	Stopping State = "stopping" // its owner is stopping it: nobody can claim it
	Ending   State = "ending"   // the host is ending it
)

// errNotOwner means that the run belongs to another allocation, or was claimed later on another connection of the node.
var errNotOwner = status.Error(codes.FailedPrecondition,
	"the run belongs to another allocation, or to a later connection of the node")

// AbsentTime is the time without a follower after which a run's owner counts as gone.
const AbsentTime = 15 * time.Second

// runs are the records of the host, each in a file <dir>/<name>.json. The connection that follows a run locks the file
// <name>.lock, so the lock shows whether the owner is connected. <dir>/lock is the lock of all records. When a run is
// given to another allocation, a *.taken file for the previous owner records the new one. That file outlives the run.
type runs struct {
	dir string

	mu     sync.Mutex // guards claims; also held while this process has the lock of all records
	claims map[string]*claim
	unread error // the error of a record that the current call of locked has left out
}

// claim is a run that this connection owns. runs.claims has the claims by task id.
type claim struct {
	name  string
	epoch int64
	lock  *os.File
}

func newRuns(dir string) *runs {
	return &runs{dir: filepath.Join(dir, "runs"), claims: map[string]*claim{}}
}

// nameOf returns the name of a run's record. Runs of a task have separate records if their hashes differ.
func nameOf(key, hash string) string {
	return fmt.Sprintf("%s-%.8x", prefixOf(key), sha256.Sum256([]byte(hash)))
}

// prefixOf returns the common prefix of the names of a task's runs.
func prefixOf(key string) string { return fmt.Sprintf("%.8x", sha256.Sum256([]byte(key))) }

// records has the records by name. Use it only while the lock of all records is held.
type records map[string]*run

// locked takes the lock of all records, reads the records whose names begin with prefix, and calls change, which may
// change them. An unreadable record is an error. But if the prefix is empty, locked omits it and sets r.unread.
func (r *runs) locked(prefix string, change func(all records) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	dir, err := owndir.Make(r.dir, 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	lock, err := waitLock(filepath.Join(r.dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	files, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	all := records{}
	r.unread = nil
	for _, file := range files {
		name, isRecord := strings.CutSuffix(file.Name(), ".json")
		if !isRecord || !strings.HasPrefix(name, prefix) {
			continue
		}
		var one run
		err := load(r.recordOf(name), &one)
		if err == nil {
			all[name] = &one
			continue
		}
		r.unread = fmt.Errorf("failed to read the record %s: %w", r.recordOf(name), err)
		if prefix != "" {
			return r.unread
		}
	}
	return change(all)
}

func (r *runs) recordOf(name string) string { return filepath.Join(r.dir, name+".json") }

func (r *runs) takenOf(key, allocID string) string {
	return filepath.Join(r.dir, nameOf(key, allocID)+".taken")
}

func (r *runs) lockOf(name string) string { return filepath.Join(r.dir, name+".lock") }

// follow makes this connection the only owner of a run. The caller holds the lock of all records.
func (r *runs) follow(name string, one *run) error {
	_ = os.Remove(r.lockOf(name)) // lock a new file: an earlier owner may hold the lock of the old one forever
	lock, err := tryLock(r.lockOf(name))
	if err != nil {
		return err
	}
	r.forgetAlone(name)
	r.drop(one.TaskID)
	r.claims[one.TaskID] = &claim{name: name, epoch: one.Epoch, lock: lock}
	return nil
}

// drop ends this connection's ownership of a run.
func (r *runs) drop(taskID string) {
	if c := r.claims[taskID]; c != nil {
		c.lock.Close()
		delete(r.claims, taskID)
	}
}

// alone reports whether a connection follows a run. If not, it also returns for how long no connection has done so.
// This time begins with the first call in which counts is true, and is 0 until then. Its beginning is stored as the
// time of the lock file, which works even on a full disk. The caller holds the lock of all records.
func (r *runs) alone(name string, counts bool) (followed bool, alone time.Duration) {
	lock, err := tryLock(r.lockOf(name))
	if err != nil {
		return true, 0 // followed, or unknown
	}
	defer lock.Close()
	info, err := lock.Stat()
	if err != nil {
		return true, 0
	}
	since := info.ModTime().UnixNano()
	if since != 0 && since < now() { // a time in the future is from before the host's last boot
		return false, time.Duration(now() - since)
	}
	if counts {
		_ = os.Chtimes(lock.Name(), time.Time{}, time.Unix(0, now()))
	}
	return false, 0
}

// forgetAlone resets the time that alone returns.
func (r *runs) forgetAlone(name string) { _ = os.Chtimes(r.lockOf(name), time.Time{}, time.Unix(0, 0)) }

// now returns the time since the host's boot, from a clock that nobody can set.
func now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail
	return ts.Nano()
}

// change calls a function to change the record of a run. It returns errNotOwner unless this connection owns the run.
func (r *runs) change(taskID string, change func(name string, one *run, all records) error) error {
	r.mu.Lock()
	c := r.claims[taskID]
	r.mu.Unlock()
	if c == nil {
		return errNotOwner
	}
	prefix, _, _ := strings.Cut(c.name, "-")
	return r.locked(prefix, func(all records) error {
		if c := r.claims[taskID]; c != nil { // read again, now with the lock
			one := all[c.name]
			if one != nil && one.TaskID == taskID && one.Epoch == c.epoch {
				return change(c.name, one, all)
			}
		}
		r.drop(taskID) // another connection has claimed or ended the run
		return errNotOwner
	})
}

// check returns errNotOwner if this connection does not own a run.
func (r *runs) check(taskID string) error {
	return r.change(taskID, func(string, *run, records) error { return nil })
}

// become changes the state of a run that this connection owns for an allocation. Released is refused unless the run is
// running. It ends this ownership even if the record cannot be saved, as on a full disk. Stopping also succeeds then,
// because the task that is stopped may have filled the disk.
func (r *runs) become(taskID, allocID string, s State) error {
	return r.change(taskID, func(name string, one *run, _ records) error {
		if one.Owner.AllocID != allocID || s == Released && one.State != Running {
			return errNotOwner
		}
		one.State = s
		if s == Released {
			one.Owner.NodeID = ""
			r.drop(taskID)
		}
		if err := save(r.recordOf(name), one); s != Stopping {
			return err
		}
		return nil
	})
}

// assign makes a run belong to an operator, or to nobody (see ChangeRequest).
func (r *runs) assign(q *ChangeRequest) error {
	return r.locked("", func(all records) error {
		for name, one := range all {
			followed, _ := r.alone(name, false)
			if one.TaskID != q.TaskID || one.Epoch != q.Epoch || followed {
				continue
			}
			if !slices.Contains([]State{Running, Released, Kept}, one.State) {
				continue
			}
			one.Epoch++
			one.State, one.Owner = q.State, Owner{}
			if q.State == Kept {
				one.Owner.AllocID = Operator
			}
			r.forgetAlone(name)
			return save(r.recordOf(name), one)
		}
		return errNotOwner
	})
}

// Operator is the AllocID in the Owner of a run that an operator keeps.
const Operator = "operator"

// seize makes this connection the owner of a run without a claim, in order to end it, if ChangeRequest allows that. It
// returns the run, which has only an id if there is no record of it. If a record cannot be read, it may be the run's,
// so seize returns an error.
func (r *runs) seize(q *ChangeRequest) (over *run, err error) {
	over = &run{Run: Run{TaskID: q.TaskID}}
	err = r.locked("", func(all records) error {
		for name, one := range all {
			if one.TaskID != q.TaskID {
				continue
			}
			allowed := one.Owner.AllocID == q.AllocID && one.State != Released
			if q.AllocID == "" {
				_, alone := r.alone(name, true)
				allowed = one.Epoch == q.Epoch && one.State != Kept && alone >= AbsentTime
			}
			if !allowed {
				return errNotOwner
			}
			over = one
			return r.condemn(name, one)
		}
		return r.unread
	})
	return over, err
}

// condemn marks a run as ending, and makes this connection its owner in order to end it. If the record cannot be saved,
// as on a full disk, it stays unchanged. The caller holds the lock of all records.
func (r *runs) condemn(name string, one *run) error {
	before := *one
	one.Epoch++
	one.State = Ending
	if save(r.recordOf(name), one) != nil {
		*one = before
	}
	return r.follow(name, one)
}

func (r *runs) started(taskID string, saved []byte) error {
	return r.change(taskID, func(name string, one *run, _ records) error {
		one.State, one.Saved = Running, saved
		return save(r.recordOf(name), one)
	})
}

// end removes the record of a run that has ended, unless the run belongs to another connection by now.
func (r *runs) end(taskID string) error {
	err := r.change(taskID, func(name string, _ *run, _ records) error {
		return errors.Join(os.Remove(r.recordOf(name)), os.RemoveAll(r.lockOf(name)))
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(taskID)
	if errors.Is(err, errNotOwner) {
		return nil
	}
	return err
}

// claim decides about a ClaimRequest. If other runs must end first, it marks them as ending and returns them in over:
// the caller must end them and call claim again. After the verdicts Start and Have, this connection owns the run.
func (r *runs) claim(q *ClaimRequest) (reply *ClaimReply, over []*run, err error) {
	err = r.locked(prefixOf(q.Key), func(all records) error {
		name := nameOf(q.Key, q.Hash)
		one := all[name]
		reply = &ClaimReply{}
		var ends []*run
		if !q.Resume {
			ends, reply.Verdict, reply.Owner = r.others(name, all, q)
		}
		if reply.Verdict == "" {
			reply.Verdict, reply.Owner = r.judge(name, all, q)
		}
		switch reply.Verdict {
		case None, Held, Doubtful:
			return nil
		case string(Ending):
			ends = append(ends, one)
		}
		for _, o := range ends {
			_ = r.give(o, q.Owner) // a full disk must not prevent the end of a run
			if err := r.condemn(nameOf(o.Key, o.Hash), o); err != nil {
				return err
			}
		}
		if len(ends) > 0 {
			over = ends
			return nil
		}

		if reply.Verdict == Start {
			if one == nil {
				one = &run{Run: Run{Key: q.Key, State: Starting}, Hash: q.Hash}
			} else {
				one.Interrupted = append(one.Interrupted, one.TaskID)
			}
			r.drop(one.TaskID)
			one.TaskID = q.TaskID
		}
		reply.Owner, reply.TaskID, reply.saved = one.Owner, one.TaskID, one.Saved
		return r.take(name, one, q)
	})
	return reply, over, err
}

// take makes this connection, and the allocation of the claim, the owner of a run.
func (r *runs) take(name string, one *run, q *ClaimRequest) error {
	c := r.claims[one.TaskID]
	if c != nil && c.name == name && c.epoch == one.Epoch && one.Owner == q.Owner {
		return nil // this connection owns it already
	}
	again := q.Resume && one.Owner == q.Owner && one.State != Released
	if one.State == Released {
		one.State = Running
	}
	one.Epoch++
	one.OrphanTimeout = q.OrphanTimeout
	err := r.give(one, q.Owner)
	if err == nil {
		err = save(r.recordOf(name), one)
	}
	if err != nil && !again {
		return err
	}
	if err != nil { // the owner stays the same, so a full disk does not matter
		one.Epoch--
	}
	return r.follow(name, one)
}

// give assigns a run to another allocation. A *.taken file records that the previous one has lost its task. It may be
// disconnected from Nomad and come back when the run is over. It must not start the task again then.
func (r *runs) give(one *run, to Owner) error {
	previous := one.Owner.AllocID
	one.Owner = to
	_ = os.Remove(r.takenOf(one.Key, to.AllocID))
	if previous == "" || previous == to.AllocID {
		return nil
	}
	return save(r.takenOf(one.Key, previous), to)
}

// others looks for runs of the task that have another hash, and returns those that must end before the claim. If the
// claim must wait for such a run, or the state of its owner is unknown, others returns a verdict and that owner. A run
// whose owner is not over keeps running beside the new one, as with a canary.
func (r *runs) others(name string, all records, q *ClaimRequest) (over []*run, verdict string, owner Owner) {
	for other, o := range all {
		mine := o.Owner.AllocID == q.Owner.AllocID
		switch {
		case o.Key != q.Key || other == name:
		case r.isBusy(other, o, mine):
			return nil, Held, o.Owner
		case mine || o.State != Running && o.State != Starting || slices.Contains(q.Gone, o.Owner.AllocID):
			over = append(over, o)
		case !slices.Contains(q.Alive, o.Owner.AllocID):
			verdict, owner = Doubtful, o.Owner
		}
	}
	return over, verdict, owner
}

// isBusy reports whether a claim must wait because an operator keeps the run, another connection is starting it (the
// task may begin at any moment), or another allocation is stopping it and was connected less than AbsentTime ago.
func (r *runs) isBusy(name string, one *run, mine bool) bool {
	followed, alone := r.alone(name, true)
	if one.State == Starting {
		return r.claims[one.TaskID] == nil && followed
	}
	return one.State == Kept || !mine && one.State == Stopping && alone < AbsentTime
}

// judge returns the verdict about the run with the hash of the claim. The verdict Ending, which is not sent to the
// node, means that this run must end before the task starts.
func (r *runs) judge(name string, all records, q *ClaimRequest) (verdict string, owner Owner) {
	one := all[name]
	if !q.Resume && !q.Wanted && load(r.takenOf(q.Key, q.Owner.AllocID), &owner) == nil {
		return Held, owner
	}
	if one == nil && q.Resume {
		for _, other := range all { // the task's run was replaced by this one, which has another hash
			return Held, other.Owner
		}
		return None, owner
	}
	if one == nil {
		return Start, owner
	}
	mine := one.Owner.AllocID == q.Owner.AllocID
	if q.Resume {
		if one.TaskID == q.TaskID && (mine && one.State != Released || one.State == Released) {
			return Have, one.Owner
		}
		return Held, one.Owner
	}
	if r.isBusy(name, one, mine) {
		return Held, one.Owner
	}
	if !mine && one.State != Released && one.State != Ending && !slices.Contains(q.Gone, one.Owner.AllocID) {
		if _, alone := r.alone(name, true); alone < AbsentTime || slices.Contains(q.Alive, one.Owner.AllocID) {
			return Held, one.Owner
		}
	}
	switch {
	case one.State == Released && !mine: // if it is mine, this is a restart, so the run must end
		return Have, one.Owner
	case one.State == Running && (mine || q.Reattach):
		return Have, one.Owner
	case one.State == Starting && mine: // StartTask recovers the task if it is running
		return Start, owner
	}
	return string(Ending), owner
}

// list returns all runs. Unlike other calls, it does not start the time that alone returns.
func (r *runs) list() (found []Run, err error) {
	err = r.locked("", func(all records) error {
		for name, one := range all {
			listed := one.Run
			listed.Followed, listed.Alone = r.alone(name, false)
			found = append(found, listed)
		}
		return nil
	})
	return found, err
}

// orphans returns runs that have had no owner for longer than their OrphanTimeout, and marks them as ending. It also
// returns runs that the host has failed to end.
func (r *runs) orphans() (over []*run, err error) {
	err = r.locked("", func(all records) error {
		for name, one := range all {
			limit := one.OrphanTimeout
			if one.State == Ending {
				r.drop(one.TaskID) // this connection has failed to end it
				limit = AbsentTime
			}
			_, alone := r.alone(name, true)
			if alone == 0 || limit == 0 || alone < limit || one.State == Kept {
				continue
			}
			if err := r.condemn(name, one); err != nil {
				return err
			}
			over = append(over, one)
		}
		return nil
	})
	return over, err
}

// lockTime is the maximum wait for a lock. A lock is held for milliseconds, unless the process that has it is stopped.
const lockTime = 30 * time.Second

// waitLock locks a file of this user, and creates it if it is missing. Closing the file unlocks it.
func waitLock(path string) (*os.File, error) {
	for end := time.Now().Add(lockTime); ; time.Sleep(10 * time.Millisecond) {
		f, err := tryLock(path)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
			return f, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("failed to lock %s: %w", path, err)
		}
	}
}

// tryLock is waitLock without the wait: it returns EWOULDBLOCK if another process or another call has the lock.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return f, nil
}

// save replaces a file with a value in JSON, readable by this user only. Only this user may write to the directory.
func save(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func load(path string, value any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}
