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
	Claim  = method[ClaimRequest, ClaimReply]{"Claim", server.claim} // may take as long as the end of other runs
	Change = method[ChangeRequest, Nothing]{"Change", server.change}
	End    = method[EndRequest, Nothing]{"End", server.endRun}
	List   = method[ListRequest, ListReply]{"List", server.list}
	Remove = method[RemoveRequest, Nothing]{"Remove", server.remove} // it is no error if there is nothing
)

// Owner is an allocation that a run belongs to.
type Owner struct {
	AllocID string `codec:"alloc_id" json:"alloc_id"`
	NodeID  string `codec:"node_id" json:"node_id"`
	NodeDir string `codec:"node_dir" json:"node_dir"` // the allocation's directory on that node
}

// Handle is a run as its host knows it: the task and the allocation are those that it was started for.
type Handle struct {
	TaskID   string `codec:"task_id" json:"task_id"`
	AllocID  string `codec:"alloc_id" json:"alloc_id"`
	AllocDir string `codec:"alloc_dir" json:"alloc_dir"` // on the host
	State    []byte `codec:"state" json:"state"`         // the core's, for RecoverTask
}

// ClaimRequest asks for the run that an allocation's task is to have. All calls that change a run are refused unless
// the same connection has claimed it last.
type ClaimRequest struct {
	Key    string `codec:"key"`     // the same for each allocation that takes the place of another one
	Hash   string `codec:"hash"`    // of what the task runs
	TaskID string `codec:"task_id"` // of the run: the one that is resumed, or is started if there is none
	Owner  Owner  `codec:"owner"`

	Resume        bool          `codec:"resume"`         // the task has a run; none is started or ended
	Reattach      bool          `codec:"reattach"`       // whether the run of an owner that is gone goes on
	Task          string        `codec:"task"`           // its name in the job
	OrphanTimeout time.Duration `codec:"orphan_timeout"` // after which a run without an owner is ended; 0: never

	Gone  []string `codec:"gone"`  // allocations that Nomad says are over
	Alive []string `codec:"alive"` // allocations that Nomad says are not, or of which it says nothing
}

// The verdicts of a claim.
const (
	Start    = "start"    // the run does not exist: StartTask makes it
	Have     = "have"     // Run is the claimed one; Owner is the allocation that had it
	Held     = "held"     // Owner has it
	Doubtful = "doubtful" // the claim is to be repeated with Owner's allocation in Gone or Alive
	None     = "none"     // there is nothing to resume
)

// ClaimReply answers it.
type ClaimReply struct {
	Verdict string `codec:"verdict"`
	Owner   Owner  `codec:"owner"`
	Run     Handle `codec:"run"`
	Epoch   int64  `codec:"epoch"` // of the claim, where the verdict is Start or Have

	// Copied is FilesRequest.At of the last copy for the same task of the same allocation, zero if there was none.
	Copied time.Time `codec:"copied"`
}

// ChangeRequest changes the state of a run that this connection has claimed for the allocation: another one of the same
// node may have it by now.
type ChangeRequest struct {
	TaskID  string `codec:"task_id"`
	AllocID string `codec:"alloc_id"`
	State   State  `codec:"state"` // Released, which gives it up, Stopping or Told
}

// Place is where a stream of a task's output ends on the node.
type Place struct {
	Number int64 `codec:"number"` // of the newest file
	Size   int64 `codec:"size"`   // of that file, in bytes
}

// LogsRequest asks for the output of a task from these places on.
type LogsRequest struct {
	TaskID  string `codec:"task_id"`
	AllocID string `codec:"alloc_id"`
	Task    string `codec:"task"`
	Stdout  Place  `codec:"stdout"`
	Stderr  Place  `codec:"stderr"`
}

// LogsChunk is the next part of a stream's output. The stream of chunks ends when the task has
// ended and all of its output was sent.
type LogsChunk struct {
	Stderr bool   `codec:"stderr"`
	Number int64  `codec:"number"` // of the file that it belongs to, never less than before
	Data   []byte `codec:"data"`
}

// ListRequest asks for the allocations that a node has directories of on the host, or without a node for all runs. The
// one works where the records of the other can't be read.
type ListRequest struct {
	NodeID string `codec:"node_id"`
}

// ListReply answers it.
type ListReply struct {
	Allocs map[string]string `codec:"allocs"` // the directories on the node, by id
	Runs   []Run             `codec:"runs"`   // of any node
}

// Run is what the host records of a run.
type Run struct {
	TaskID string `codec:"task_id" json:"task_id"`
	Key    string `codec:"key" json:"key"`
	Epoch  int64  `codec:"epoch" json:"epoch"`
	State  State  `codec:"state" json:"state"`
	Ending bool   `codec:"ending" json:"ending"` // it is stopping, and not by its owner
	Owner  Owner  `codec:"owner" json:"owner"`   // the last one

	Followed      bool          `codec:"followed" json:"followed"`             // by the owner's node
	Alone         time.Duration `codec:"alone" json:"alone"`                   // how long it was seen not to be followed
	OrphanTimeout time.Duration `codec:"orphan_timeout" json:"orphan_timeout"` // 0: none
}

// EndRequest has a run ended: that of an allocation, unless it was released or another one has it, or without an
// allocation one that nobody has followed for AbsentTime, nor claimed since that epoch.
type EndRequest struct {
	TaskID  string `codec:"task_id"`
	AllocID string `codec:"alloc_id"`
	Epoch   int64  `codec:"epoch"`
}

// RemoveRequest has an allocation's tasks and its directory removed.
type RemoveRequest struct {
	NodeID  string `codec:"node_id"` // whose it is
	AllocID string `codec:"alloc_id"`
}

// FilesRequest begins a copy of files into the directory of a task that this connection owns. An archive in the format
// of tar(5) follows in FilesParts, with paths relative to that directory.
type FilesRequest struct {
	TaskID  string `codec:"task_id"` // of the run
	AllocID string `codec:"alloc_id"`
	Task    string `codec:"task"`
	User    string `codec:"user"` // whose the files become; empty: as for a task
	Owner   Owner  `codec:"owner"`

	At time.Time `codec:"at"` // how new the files are, by the node's clock
}

// FilesPart is a part of the archive.
type FilesPart struct {
	Data []byte `codec:"data"`
}

// Nothing is the reply of a call that has no more to tell.
type Nothing struct{}

// method is a call with one request and one reply.
type method[Request, Reply any] struct {
	name  string
	serve func(server, context.Context, *Request) (*Reply, error)
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
		return c.serve(s.(server), ctx, &request)
	}
	return grpc.MethodDesc{MethodName: c.name, Handler: handle}
}

// open begins a call with a stream, by its request.
func open(ctx context.Context, conn *grpc.ClientConn, stream *grpc.StreamDesc, request any) (grpc.ClientStream, error) {
	s, err := conn.NewStream(ctx, stream, serviceName+stream.StreamName, encoded)
	if err != nil {
		return nil, err
	}
	return s, s.SendMsg(request)
}

// Logs returns a function that waits for the next chunk, which is valid until it is called again. It returns
// io.EOF at the end. The context ends it.
func Logs(ctx context.Context, conn *grpc.ClientConn, r *LogsRequest) (next func() (*LogsChunk, error), err error) {
	stream, err := open(ctx, conn, &logsStream, r)
	if err != nil {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var chunk LogsChunk
	return func() (*LogsChunk, error) {
		chunk = LogsChunk{Data: chunk.Data[:0]}
		if err := stream.RecvMsg(&chunk); err != nil {
			return nil, err
		}
		return &chunk, nil
	}, nil
}

// stallTime is how long a copy of files may stand still: a task of the same user can stop the program that unpacks.
const stallTime = time.Minute

// Files copies what the function writes, an archive. The context ends it.
func Files(ctx context.Context, conn *grpc.ClientConn, r *FilesRequest, write func(io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled := time.AfterFunc(stallTime, cancel)
	defer stalled.Stop()
	stream, err := open(ctx, conn, &filesStream, r)
	if err != nil {
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

// server is what answers these calls.
type server interface {
	claim(ctx context.Context, r *ClaimRequest) (*ClaimReply, error)
	change(ctx context.Context, r *ChangeRequest) (*Nothing, error)
	list(ctx context.Context, r *ListRequest) (*ListReply, error)
	remove(ctx context.Context, r *RemoveRequest) (*Nothing, error)
	endRun(ctx context.Context, r *EndRequest) (*Nothing, error)
	logs(ctx context.Context, r *LogsRequest, send func(*LogsChunk) error) error
	files(ctx context.Context, r *FilesRequest, archive io.Reader) error
}

// serviceName is the service in the names of its calls.
const serviceName = "/outrider.remote.Host/"

var (
	logsStream  = grpc.StreamDesc{StreamName: "Logs", ServerStreams: true, Handler: serveLogs}
	filesStream = grpc.StreamDesc{StreamName: "Files", ClientStreams: true, Handler: serveFiles}

	service = grpc.ServiceDesc{
		ServiceName: strings.Trim(serviceName, "/"),
		HandlerType: (*server)(nil),
		Methods: []grpc.MethodDesc{
			Claim.describe(), Change.describe(), End.describe(), List.describe(), Remove.describe(),
		},
		Streams: []grpc.StreamDesc{logsStream, filesStream},
	}
)

func serveLogs(s any, stream grpc.ServerStream) error {
	var request LogsRequest
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	return s.(server).logs(stream.Context(), &request, func(c *LogsChunk) error { return stream.SendMsg(c) })
}

func serveFiles(s any, stream grpc.ServerStream) error {
	var request FilesRequest
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	if err := s.(server).files(stream.Context(), &request, &receiver{stream: stream}); err != nil {
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
