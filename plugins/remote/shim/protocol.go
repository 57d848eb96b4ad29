// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Besides Nomad's driver protocol there are a few calls. To their messages fields are only ever added.
const (
	serviceName   = "outrider.remote.Host"
	claimMethod   = "Claim"
	releaseMethod = "Release"
	logsMethod    = "Logs"
	listMethod    = "List"
	removeMethod  = "Remove"
	endMethod     = "End"
	filesMethod   = "Files"
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
	Own           bool          `codec:"own"`            // with Resume: not one that was released
	Reattach      bool          `codec:"reattach"`       // whether the run of an owner that is gone goes on
	Task          string        `codec:"task"`           // its name in the job
	OrphanTimeout time.Duration `codec:"orphan_timeout"` // after which a run without an owner is ended; 0: never

	Gone  []string `codec:"gone"`  // allocations that Nomad says are over
	Alive []string `codec:"alive"` // allocations that Nomad says are not, or of which it says nothing
	Told  []string `codec:"told"`  // tasks whose exits Nomad knows
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

	// Copied is FilesRequest.At of the last copy for the same task of the same allocation, zero if there was none.
	Copied time.Time `codec:"copied"`
}

// ReleaseRequest gives up a run.
type ReleaseRequest struct {
	TaskID string `codec:"task_id"`
	State  State  `codec:"state"` // Released or Told
	Sure   bool   `codec:"sure"`  // Nomad has said that another allocation is to have it
}

// ReleaseReply answers it.
type ReleaseReply struct {
	Done bool `codec:"done"` // false: nobody would claim it, so it is to be stopped
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
	Stderr bool
	Number int64 // of the file that it belongs to, never less than before
	Data   []byte
}

// ListRequest asks for all runs, and for the allocations that a node has directories of on the host.
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
	Hash   string `codec:"hash" json:"hash"`
	Epoch  int64  `codec:"epoch" json:"epoch"`
	State  State  `codec:"state" json:"state"`
	Ending bool   `codec:"ending" json:"ending"` // it is stopping, and not by its owner
	Owner  Owner  `codec:"owner" json:"owner"`   // the last one

	Followed      bool          `codec:"followed" json:"followed"`             // by the owner's node
	Alone         time.Duration `codec:"alone" json:"alone"`                   // how long it was seen not to be followed
	OrphanTimeout time.Duration `codec:"orphan_timeout" json:"orphan_timeout"` // 0: none
	PID           int           `codec:"pid" json:"pid,omitempty"`             // 0: the process has ended, or is not known
}

// EndRequest has a run ended that nobody has followed for AbsentTime. It may not have been claimed since it was listed.
type EndRequest struct {
	TaskID string `codec:"task_id"`
	Epoch  int64  `codec:"epoch"`
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

// Client has these calls of a host.
type Client struct{ Conn *grpc.ClientConn }

// Logs returns a function that waits for the next chunk, which is valid until it is called again. It returns
// io.EOF at the end. The context ends it.
func (c Client) Logs(ctx context.Context, r *LogsRequest) (next func() (*LogsChunk, error), err error) {
	stream, err := c.Conn.NewStream(ctx, &service.Streams[0], "/"+serviceName+"/"+logsMethod, subtype)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(r); err != nil {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var chunk LogsChunk
	return func() (*LogsChunk, error) {
		if err := stream.RecvMsg(&chunk); err != nil {
			return nil, err
		}
		return &chunk, nil
	}, nil
}

// Claim may take as long as the end of the runs that are over.
func (c Client) Claim(ctx context.Context, r *ClaimRequest) (*ClaimReply, error) {
	return invoke[ClaimReply](ctx, c, claimMethod, r)
}

// Release gives up a run that this connection has claimed.
func (c Client) Release(ctx context.Context, r *ReleaseRequest) (*ReleaseReply, error) {
	return invoke[ReleaseReply](ctx, c, releaseMethod, r)
}

// List returns the allocations of a node on the host, and all runs.
func (c Client) List(ctx context.Context, r *ListRequest) (*ListReply, error) {
	return invoke[ListReply](ctx, c, listMethod, r)
}

// Remove ends the tasks of an allocation, and removes its directory. It is no error if there is none.
func (c Client) Remove(ctx context.Context, r *RemoveRequest) (*Nothing, error) {
	return invoke[Nothing](ctx, c, removeMethod, r)
}

// End ends a run that is alone.
func (c Client) End(ctx context.Context, r *EndRequest) (*Nothing, error) {
	return invoke[Nothing](ctx, c, endMethod, r)
}

// stallTime is how long a copy of files may stand still: a task of the same user can stop the program that unpacks.
const stallTime = time.Minute

// Files copies what the function writes, an archive. The context ends it.
func (c Client) Files(ctx context.Context, r *FilesRequest, write func(io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled := time.AfterFunc(stallTime, cancel)
	defer stalled.Stop()
	stream, err := c.Conn.NewStream(ctx, &service.Streams[1], "/"+serviceName+"/"+filesMethod, subtype)
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

func invoke[Reply any](ctx context.Context, c Client, method string, request any) (*Reply, error) {
	var reply Reply
	err := c.Conn.Invoke(ctx, "/"+serviceName+"/"+method, request, &reply, subtype)
	return &reply, err
}

// server is what answers these calls.
type server interface {
	claim(ctx context.Context, r *ClaimRequest) (*ClaimReply, error)
	release(ctx context.Context, r *ReleaseRequest) (*ReleaseReply, error)
	list(ctx context.Context, r *ListRequest) (*ListReply, error)
	remove(ctx context.Context, r *RemoveRequest) (*Nothing, error)
	endAlone(ctx context.Context, r *EndRequest) (*Nothing, error)
	logs(ctx context.Context, r *LogsRequest, send func(*LogsChunk) error) error
	files(ctx context.Context, r *FilesRequest, archive io.Reader) error
}

// service describes them to gRPC, as its generated code does.
var service = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*server)(nil),
	Methods: []grpc.MethodDesc{
		unary(claimMethod, server.claim), unary(releaseMethod, server.release),
		unary(listMethod, server.list), unary(removeMethod, server.remove), unary(endMethod, server.endAlone),
	},
	Streams: []grpc.StreamDesc{
		{StreamName: logsMethod, ServerStreams: true, Handler: serveLogs},
		{StreamName: filesMethod, ClientStreams: true, Handler: serveFiles},
	},
}

func unary[Request, Reply any](
	name string, call func(server, context.Context, *Request) (*Reply, error),
) grpc.MethodDesc {
	handle := func(s any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request Request
		if err := decode(&request); err != nil {
			return nil, err
		}
		return call(s.(server), ctx, &request)
	}
	return grpc.MethodDesc{MethodName: name, Handler: handle}
}

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

// subtype selects the codec of a call.
var subtype = grpc.CallContentSubtype(codec{}.Name())

func init() { encoding.RegisterCodecV2(codec{}) }

// codec writes messages in MessagePack, as Nomad writes its own, but for output, of which there may be much: a
// LogsChunk is a byte that is 1 for stderr, the number in 8 bytes, and the data.
type codec struct{}

const chunkHeader = 1 + 8

// buffers are for messages up to a full LogsChunk: gRPC's own pool clears 1 MB for each of that size.
var buffers = mem.NewTieredBufferPool(256, 4<<10, 32<<10, chunkHeader+chunkSize)

func (codec) Name() string { return "outrider" }

func (codec) Marshal(message any) (mem.BufferSlice, error) {
	chunk, ok := message.(*LogsChunk)
	if !ok {
		var text []byte
		err := base.MsgPackEncode(&text, message)
		return mem.BufferSlice{mem.SliceBuffer(text)}, err
	}
	buffer := buffers.Get(chunkHeader + len(chunk.Data))
	(*buffer)[0] = 0
	if chunk.Stderr {
		(*buffer)[0] = 1
	}
	binary.BigEndian.PutUint64((*buffer)[1:], uint64(chunk.Number)) //nolint:gosec // read back as it was
	copy((*buffer)[chunkHeader:], chunk.Data)
	return mem.BufferSlice{mem.NewBuffer(buffer, buffers)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, message any) error {
	chunk, ok := message.(*LogsChunk)
	if !ok {
		return base.MsgPackDecode(data.Materialize(), message)
	}
	reader := data.Reader()
	defer reader.Close()
	var header [chunkHeader]byte
	if _, err := io.ReadFull(reader, header[:]); err != nil {
		return fmt.Errorf("a part of the output is cut: %w", err)
	}
	chunk.Stderr = header[0] == 1
	chunk.Number = int64(binary.BigEndian.Uint64(header[1:])) //nolint:gosec // checked by who writes the file
	chunk.Data = slices.Grow(chunk.Data[:0], reader.Remaining())[:reader.Remaining()]
	_, err := io.ReadFull(reader, chunk.Data)
	return err
}
