// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/hashicorp/nomad/plugins/base"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Besides Nomad's driver protocol there are three calls. To their messages fields are only ever added.
const (
	serviceName  = "outrider.remote.Host"
	logsMethod   = "Logs"
	listMethod   = "List"
	removeMethod = "Remove"
)

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

// ListRequest asks for the allocations that a node has directories of on the host.
type ListRequest struct {
	NodeID string `codec:"node_id"`
}

// ListReply answers it.
type ListReply struct {
	Allocs []Alloc `codec:"allocs"`
}

// Alloc is an allocation with a directory on the host.
type Alloc struct {
	ID      string `codec:"id" json:"-"`
	NodeID  string `codec:"node_id" json:"node_id"`   // whose it is
	NodeDir string `codec:"node_dir" json:"node_dir"` // its directory on that node
}

// RemoveRequest has an allocation's tasks and its directory removed.
type RemoveRequest struct {
	AllocID string `codec:"alloc_id"`
}

// RemoveReply says that nothing of it is left.
type RemoveReply struct{}

// Client has the three calls of a host.
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

// List returns the allocations of a node on the host.
func (c Client) List(ctx context.Context, nodeID string) ([]Alloc, error) {
	var reply ListReply
	err := c.Conn.Invoke(ctx, "/"+serviceName+"/"+listMethod, &ListRequest{NodeID: nodeID}, &reply, subtype)
	return reply.Allocs, err
}

// Remove ends the tasks of an allocation, and removes its directory. It is no error if there is none.
func (c Client) Remove(ctx context.Context, allocID string) error {
	return c.Conn.Invoke(ctx, "/"+serviceName+"/"+removeMethod, &RemoveRequest{AllocID: allocID}, &RemoveReply{}, subtype)
}

// server is what answers the three calls.
type server interface {
	logs(ctx context.Context, r *LogsRequest, send func(*LogsChunk) error) error
	list(r *ListRequest) (*ListReply, error)
	remove(ctx context.Context, r *RemoveRequest) (*RemoveReply, error)
}

// service describes them to gRPC, as its generated code does.
var service = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*server)(nil),
	Methods: []grpc.MethodDesc{
		{MethodName: listMethod, Handler: unary(func(s server, _ context.Context, r *ListRequest) (any, error) {
			return s.list(r)
		})},
		{MethodName: removeMethod, Handler: unary(func(s server, ctx context.Context, r *RemoveRequest) (any, error) {
			return s.remove(ctx, r)
		})},
	},
	Streams: []grpc.StreamDesc{{StreamName: logsMethod, ServerStreams: true, Handler: serveLogs}},
}

func unary[R any](call func(s server, ctx context.Context, r *R) (any, error)) grpc.MethodHandler {
	return func(s any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request R
		if err := decode(&request); err != nil {
			return nil, err
		}
		return call(s.(server), ctx, &request)
	}
}

func serveLogs(s any, stream grpc.ServerStream) error {
	var request LogsRequest
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	return s.(server).logs(stream.Context(), &request, func(c *LogsChunk) error { return stream.SendMsg(c) })
}

// subtype selects the codec of a call.
var subtype = grpc.CallContentSubtype(codec{}.Name())

func init() { encoding.RegisterCodecV2(codec{}) }

// codec writes messages in MessagePack, as Nomad writes its own, but for output, of which there may be much: a
// LogsChunk is a byte that is 1 for stderr, the number in 8 bytes, and the data.
type codec struct{}

const chunkHeader = 1 + 8

func (codec) Name() string { return "outrider" }

func (codec) Marshal(message any) (mem.BufferSlice, error) {
	chunk, ok := message.(*LogsChunk)
	if !ok {
		var text []byte
		err := base.MsgPackEncode(&text, message)
		return mem.BufferSlice{mem.SliceBuffer(text)}, err
	}
	pool := mem.DefaultBufferPool()
	buffer := pool.Get(chunkHeader + len(chunk.Data))
	(*buffer)[0] = 0
	if chunk.Stderr {
		(*buffer)[0] = 1
	}
	binary.BigEndian.PutUint64((*buffer)[1:], uint64(chunk.Number)) //nolint:gosec // read back as it was
	copy((*buffer)[chunkHeader:], chunk.Data)
	return mem.BufferSlice{mem.NewBuffer(buffer, pool)}, nil
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
