// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// These calls supplement Nomad's driver protocol.
var (
	Claim  = method[ClaimRequest, ClaimReply]{"Claim", (*host).claim} // may have to wait for the end of other runs
	Change = method[ChangeRequest, Nothing]{"Change", (*host).change}
	List   = method[Nothing, ListReply]{"List", (*host).list}
	Logs   = method[LogsRequest, LogsReply]{"Logs", (*host).logs} // waits for output
)

// Owner is the allocation that a run belongs to, and its node.
type Owner struct {
	AllocID string `codec:"alloc_id" json:"alloc_id"`
	NodeID  string `codec:"node_id" json:"node_id"`
}

// partsOf returns the two parts at the beginning of a task's id in Nomad: the allocation's id and the task's name. A
// run keeps the id of the task that it was started for, even if it belongs to another allocation now.
func partsOf(taskID string) (allocID, task string) {
	allocID, rest, _ := strings.Cut(taskID, "/")
	task, _, _ = strings.Cut(rest, "/")
	return allocID, task
}

// ClaimRequest claims the run of an allocation's task for a connection. From then on, the host accepts calls that
// change the run only on this connection, until another one claims the run. (ChangeRequest describes the exceptions.)
type ClaimRequest struct {
	Key    string `codec:"key"`     // of the task; the same for an allocation and its replacement
	Hash   string `codec:"hash"`    // of the command and everything else that the task runs with (driver.hashOf)
	TaskID string `codec:"task_id"` // of the run to resume, or of the run to start if none exists
	Owner  Owner  `codec:"owner"`

	Resume        bool          `codec:"resume"`         // only recover the run TaskID; do not start or end a run
	Wanted        bool          `codec:"wanted"`         // Nomad wants the allocation to run
	Reattach      bool          `codec:"reattach"`       // if the owner is gone, take its run over instead of ending it
	OrphanTimeout time.Duration `codec:"orphan_timeout"` // the host ends a run after this time without an owner; 0: never

	Output LogsRequest `codec:"output"` // how much of the task's output the node has already

	Gone  []string `codec:"gone"`  // allocations that are over, according to Nomad
	Alive []string `codec:"alive"` // allocations that are not over, or whose state is unknown
}

// The verdicts of a claim.
const (
	Start    = "start"    // the run does not exist: call StartTask
	Have     = "have"     // the run exists, and now belongs to the caller; Owner is the previous allocation
	Held     = "held"     // the run belongs to Owner
	Doubtful = "doubtful" // repeat the claim with Owner's allocation in Gone or Alive
	None     = "none"     // no run to resume
)

// ClaimReply is the host's decision about a ClaimRequest.
type ClaimReply struct {
	Verdict string `codec:"verdict"`
	Owner   Owner  `codec:"owner"`
	TaskID  string `codec:"task_id"` // of the run, if the verdict is Start or Have

	// Copied is FilesRequest.At of the last copy of files for this task and allocation, or zero if none exists.
	Copied time.Time `codec:"copied"`

	saved []byte // run.Saved, for host.recover; not sent to the node
}

// ChangeRequest changes the state of a run.
//
// A request with an AllocID comes from the allocation's node. Released (which gives the run up) and Stopping are
// refused unless the latest claim of the run came from this allocation on this connection, because another connection
// of the node may have the run by now. Ending removes the run, unless it was released or belongs to another allocation.
//
// A request without an AllocID comes from an operator, or from a node because the job was stopped. It is refused if a
// connection follows the run, or if the run was claimed after Epoch. Kept assigns the run to the operator, and Released
// to nobody. Ending also requires that nobody has followed the run for AbsentTime, and that the run is not kept.
type ChangeRequest struct {
	TaskID  string `codec:"task_id"`
	AllocID string `codec:"alloc_id"`
	Epoch   int64  `codec:"epoch"`
	State   State  `codec:"state"`
}

// LogsRequest requests output of a task that the node does not have. Stdout and Stderr have the number and the size of
// the newest file on the node.
type LogsRequest struct {
	TaskID string   `codec:"task_id"` // of the run
	Stdout LogsPart `codec:"stdout"`
	Stderr LogsPart `codec:"stderr"`
}

// LogsReply has the next part of the output that the node lacks.
type LogsReply struct {
	Stdout LogsPart `codec:"stdout"`
	Stderr LogsPart `codec:"stderr"`
	Over   bool     `codec:"over"` // the task has ended, and the node has all output
}

// LogsPart is a part of one output file.
type LogsPart struct {
	Number int64  `codec:"number"` // number of the file; never decreases
	Size   int64  `codec:"size"`
	Data   []byte `codec:"data"`
}

// ListReply has all runs on the host.
type ListReply struct {
	Runs []Run `codec:"runs"`
}

// Run describes a run on the host.
type Run struct {
	TaskID string `codec:"task_id" json:"task_id"`
	Key    string `codec:"key" json:"key"`
	Epoch  int64  `codec:"epoch" json:"epoch"`
	State  State  `codec:"state" json:"state"`
	Owner  Owner  `codec:"owner" json:"owner"` // the current or last owner

	Followed      bool          `codec:"followed" json:"followed"`             // a connection of the owner's node has claimed it
	Alone         time.Duration `codec:"alone" json:"alone"`                   // how long no connection has followed the run; see runs.alone
	OrphanTimeout time.Duration `codec:"orphan_timeout" json:"orphan_timeout"` // see ClaimRequest
}

// FilesRequest begins a copy of files into the directory of a task whose run this connection owns. An archive in the
// format of tar(5) follows in FilesParts, with paths relative to that directory.
type FilesRequest struct {
	TaskID string    `codec:"task_id"` // of the run
	User   string    `codec:"user"`    // the owner of the files; empty: the default user of tasks
	At     time.Time `codec:"at"`      // the copy has all changes up to this time, by the node's clock
}

// FilesPart is a part of the archive.
type FilesPart struct {
	Data []byte `codec:"data"`
}

// Nothing is an empty message.
type Nothing struct{}

// method is a call of this package with one request and one reply.
type method[Request, Reply any] struct {
	name  string
	serve func(*host, context.Context, *Request) (*Reply, error)
}

// On makes the call on a connection.
func (c method[Request, Reply]) On(ctx context.Context, conn *grpc.ClientConn, request *Request) (*Reply, error) {
	var reply Reply
	err := conn.Invoke(ctx, serviceName+c.name, request, &reply, encoded)
	return &reply, err
}

// describe returns the call's description for gRPC, as generated code does.
func (c method[Request, Reply]) describe() grpc.MethodDesc {
	handle := func(s any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request Request
		if err := decode(&request); err != nil {
			return nil, err
		}
		return c.serve(s.(*host), ctx, &request)
	}
	return grpc.MethodDesc{MethodName: c.name, Handler: handle}
}

// stallTime is how long a copy of files may make no progress. A task can stop tar, because tar runs as the task's user.
const stallTime = time.Minute

// Files sends the host the archive that the function write produces. It ends when the context ends.
func Files(ctx context.Context, conn *grpc.ClientConn, r *FilesRequest, write func(io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled := time.AfterFunc(stallTime, cancel)
	defer stalled.Stop()
	stream, err := conn.NewStream(ctx, &filesStream, serviceName+filesStream.StreamName, encoded)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(r); err != nil {
		return err
	}
	to := &sender{stream: stream, stalled: stalled}
	out := bufio.NewWriterSize(to, Buffer)
	err = errors.Join(write(out), out.Flush())
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil && !to.over {
		return err
	}
	return stream.RecvMsg(&Nothing{})
}

type sender struct {
	stream  grpc.ClientStream
	stalled *time.Timer
	over    bool // the host has ended the call: RecvMsg returns the reason
}

func (s *sender) Write(b []byte) (int, error) {
	s.stalled.Reset(stallTime)
	err := s.stream.SendMsg(&FilesPart{b})
	s.over = errors.Is(err, io.EOF)
	return len(b), err
}

type receiver struct {
	stream grpc.ServerStream
	rest   []byte
}

func (r *receiver) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		var part FilesPart
		if err := r.stream.RecvMsg(&part); err != nil {
			return 0, err
		}
		r.rest = part.Data
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// receiving is the part of host that receives files. Tests implement it.
type receiving interface {
	files(ctx context.Context, r *FilesRequest, archive io.Reader) error
}

// serviceName is the prefix of the calls' names.
const serviceName = "/outrider.remote.Host/"

var (
	filesStream = grpc.StreamDesc{StreamName: "Files", ClientStreams: true, Handler: serveFiles}

	service = grpc.ServiceDesc{
		ServiceName: strings.Trim(serviceName, "/"),
		HandlerType: (*receiving)(nil),
		Methods:     []grpc.MethodDesc{Claim.describe(), Change.describe(), List.describe(), Logs.describe()},
		Streams:     []grpc.StreamDesc{filesStream},
	}
)

func serveFiles(s any, stream grpc.ServerStream) error {
	var request FilesRequest
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	if err := s.(receiving).files(stream.Context(), &request, &receiver{stream: stream}); err != nil {
		return err
	}
	return stream.SendMsg(&Nothing{})
}

var encoded = grpc.ForceCodecV2(codec{})

func init() { encoding.RegisterCodecV2(codec{}) }

// codec encodes messages in MessagePack, with Nomad's encoder.
type codec struct{}

func (codec) Name() string { return "outrider" }

func (codec) Marshal(message any) (mem.BufferSlice, error) {
	var text []byte
	err := base.MsgPackEncode(&text, message)
	return mem.BufferSlice{mem.SliceBuffer(text)}, err
}

func (codec) Unmarshal(data mem.BufferSlice, message any) error {
	return base.MsgPackDecode(data.Materialize(), message)
}
