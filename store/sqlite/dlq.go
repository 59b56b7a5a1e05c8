package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/surebus/eventbus"
)

// DLQ is the dead letter queue in a file, for a program that runs no handlers. Its methods are those of
// [eventbus.DLQ]. They are safe for concurrent use.
type DLQ struct {
	*eventbus.DLQ
	bus *eventbus.Bus
}

// OpenDLQ opens the dead letters of the store at a path, beside the bus that runs the handlers, or
// while none runs. It lists, groups, exports, imports, replays and purges them. Call Close.
//
// A replay opens a dispatch for the subscriptions that the letter names, in one commit with the removal
// of the letter. A running bus takes the dispatch within 250 ms. Otherwise the next bus does. OpenDLQ
// does not know the subscriptions: if one of them does not exist in that bus, its delivery waits until it
// is made. ReplayEdited encodes the payload as JSON, unless it is an eventbus.EncodedPayload.
//
// OpenDLQ takes no lease. It fails if the file does not exist, or has an older schema.
//
// Errors: those of Open. ErrLocked means that the bus cannot share the file, see LockedError.Reason.
func OpenDLQ(ctx context.Context, path string, opts ...Option) (*DLQ, error) {
	q, err := openDLQ(ctx, path, opts)
	if err != nil {
		return nil, fmt.Errorf("sqlite.OpenDLQ: %w", err)
	}
	return q, nil
}

func openDLQ(ctx context.Context, path string, opts []Option) (*DLQ, error) {
	s, err := open(ctx, path, append(opts[:len(opts):len(opts)], Beside()))
	if err != nil {
		return nil, err
	}
	bus, err := eventbus.New(eventbus.WithStore(s), eventbus.WithoutHandlers(), eventbus.WithLogger(s.cfg.logger))
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return &DLQ{bus.DLQ(), bus}, nil
}

// Bus returns the bus of the queue. It was made with [eventbus.WithoutHandlers]: use it for Event,
// Dispatches and the orders of subscriptions.
func (q *DLQ) Bus() *eventbus.Bus { return q.bus }

// Close closes the file. It waits for calls in progress until ctx ends. A second Close returns nil.
func (q *DLQ) Close(ctx context.Context) error { return q.bus.Shutdown(ctx) }
