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

// The calls that Nomad's driver protocol does not have.
var (
	Claim  = method[ClaimRequest, ClaimReply]{"Claim", (*host).claim} // may take as long as the end of other runs
	Change = method[ChangeRequest, Nothing]{"Change", (*host).change}
	List   = method[Nothing, ListReply]{"List", (*host).list}
	Logs   = method[LogsRequest, LogsReply]{"Logs", (*host).logs} // returns when there is output
)

// Owner is an allocation that a run belongs to.
type Owner struct {
	AllocID string `codec:"alloc_id" json:"alloc_id"`
	NodeID  string `codec:"node_id" json:"node_id"`
}

// partsOf returns the allocation and the name of the task that a run was started for. The run has the id that Nomad
// gave to that task, which begins with them.
func partsOf(taskID string) (allocID, task string) {
	allocID, rest, _ := strings.Cut(taskID, "/")
	task, _, _ = strings.Cut(rest, "/")
	return allocID, task
}

// ClaimRequest asks for the run that an allocation's task is to have. All calls that change a run are refused unless
// the same connection has claimed it last.
type ClaimRequest struct {
	Key    string `codec:"key"`     // the same for each allocation that takes the place of another one
	Hash   string `codec:"hash"`    // of what the task runs
	TaskID string `codec:"task_id"` // of the run: the one that is resumed, or is started if there is none
	Owner  Owner  `codec:"owner"`

	Resume        bool          `codec:"resume"`         // the task has a run, which is recovered; none is started or ended
	Wanted        bool          `codec:"wanted"`         // Nomad says that the allocation is to run
	Reattach      bool          `codec:"reattach"`       // whether the run of an owner that is gone goes on
	OrphanTimeout time.Duration `codec:"orphan_timeout"` // after which a run without an owner is ended; 0: never

	Gone  []string `codec:"gone"`  // allocations that Nomad says are over
	Alive []string `codec:"alive"` // allocations that Nomad says are not, or of which it says nothing
}

// The verdicts of a claim.
const (
	Start    = "start"    // the run does not exist: StartTask makes it
	Have     = "have"     // there is one; Owner is the allocation that had it
	Held     = "held"     // Owner has it
	Doubtful = "doubtful" // the claim is to be repeated with Owner's allocation in Gone or Alive
	None     = "none"     // there is nothing to resume
)

// ClaimReply answers it.
type ClaimReply struct {
	Verdict string `codec:"verdict"`
	Owner   Owner  `codec:"owner"`
	TaskID  string `codec:"task_id"` // of the run, where the verdict is Start or Have

	// Copied is FilesRequest.At of the last copy for the same task of the same allocation, zero if there was none.
	Copied time.Time `codec:"copied"`

	saved []byte // run.Saved
}

// ChangeRequest changes the state of a run. Released, which gives it up, and Stopping are for the connection that has
// claimed it last for the allocation: another one of the same node may have it by now. Ending removes it, unless it was
// released or another allocation has it.
//
// Without an allocation it is an operator's change, or Nomad's job is over: of a run that nobody follows, nor has
// claimed since the epoch. Kept has it belong to the operator, Released to nobody; Ending is for one that nobody has
// followed for AbsentTime, and that is not kept.
type ChangeRequest struct {
	TaskID  string `codec:"task_id"`
	AllocID string `codec:"alloc_id"`
	Epoch   int64  `codec:"epoch"`
	State   State  `codec:"state"`
}

// LogsRequest asks for the output of a task behind what the node has: the newest file of each stream, and its size.
type LogsRequest struct {
	TaskID string   `codec:"task_id"` // of the run
	Stdout LogsPart `codec:"stdout"`
	Stderr LogsPart `codec:"stderr"`
}

// LogsReply is the next output from there.
type LogsReply struct {
	Stdout LogsPart `codec:"stdout"`
	Stderr LogsPart `codec:"stderr"`
	Over   bool     `codec:"over"` // the task has ended, and there is no more
}

// LogsPart is a part of one file.
type LogsPart struct {
	Number int64  `codec:"number"` // of the file, never less than before
	Size   int64  `codec:"size"`
	Data   []byte `codec:"data"`
}

// ListReply has all runs on the host.
type ListReply struct {
	Runs []Run `codec:"runs"`
}

// Run is what the host records of a run.
type Run struct {
	TaskID string `codec:"task_id" json:"task_id"`
	Key    string `codec:"key" json:"key"`
	Epoch  int64  `codec:"epoch" json:"epoch"`
	State  State  `codec:"state" json:"state"`
	Owner  Owner  `codec:"owner" json:"owner"` // the last one

	Followed      bool          `codec:"followed" json:"followed"`             // by the owner's node
	Alone         time.Duration `codec:"alone" json:"alone"`                   // how long it was seen not to be followed
	OrphanTimeout time.Duration `codec:"orphan_timeout" json:"orphan_timeout"` // 0: none
}

// FilesRequest begins a copy of files into the directory of a task that this connection owns. An archive in the format
// of tar(5) follows in FilesParts, with paths relative to that directory.
type FilesRequest struct {
	TaskID string    `codec:"task_id"` // of the run
	User   string    `codec:"user"`    // whose the files become; empty: as for a task
	At     time.Time `codec:"at"`      // how new the files are, by the node's clock
}

// FilesPart is a part of the archive.
type FilesPart struct {
	Data []byte `codec:"data"`
}

// Nothing is the message of a call that has no more to tell.
type Nothing struct{}

// method is a call with one request and one reply.
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

// describe describes the call to gRPC, as its generated code does.
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

// stallTime is how long a copy of files may stand still: a task of the same user can stop the program that unpacks.
const stallTime = time.Minute

// Files copies what the function writes, an archive. The context ends it.
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

// sender writes FilesParts.
type sender struct {
	stream  grpc.ClientStream
	stalled *time.Timer
	over    bool // the host has ended the call: RecvMsg returns why
}

func (s *sender) Write(b []byte) (int, error) {
	s.stalled.Reset(stallTime)
	err := s.stream.SendMsg(&FilesPart{b})
	s.over = errors.Is(err, io.EOF)
	return len(b), err
}

// receiver reads FilesParts.
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

// receiving is the side of a copy that gets it.
type receiving interface {
	files(ctx context.Context, r *FilesRequest, archive io.Reader) error
}

// serviceName is the service in the names of its calls.
const serviceName = "/outrider.remote.Host/"

var (
	filesStream = grpc.StreamDesc{StreamName: "Files", ClientStreams: true, Handler: serveFiles}

	service = grpc.ServiceDesc{
		ServiceName: strings.Trim(serviceName, "/"),
		HandlerType: (*receiving)(nil),
		Methods: []grpc.MethodDesc{
			Claim.describe(), Change.describe(), List.describe(), Logs.describe(),
		},
		Streams: []grpc.StreamDesc{filesStream},
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

// encoded selects the codec of a call.
var encoded = grpc.ForceCodecV2(codec{})

func init() { encoding.RegisterCodecV2(codec{}) }

// codec writes messages in MessagePack, as Nomad writes its own.
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
