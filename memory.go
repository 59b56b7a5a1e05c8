package eventbus

import (
	"context"

	"github.com/surebus/eventbus/internal/lane"
)

// memory is the store of a bus that has no other: what is accepted lives in the
// bus's own queues, so there is nothing to write and nothing to find.
type memory struct {
	lanes *lane.Pool[opening, *worker]
	*letterQueue
}

func (m memory) append(ctx context.Context, o opening) error {
	return m.lanes.Push(ctx, &o, o.extras != nil && o.extras.inside)
}

func (m memory) claim(context.Context) ([]*dispatch, error) { return nil, nil }

func (m memory) settle(_ *dispatch, s settlement) *DeadLetter {
	if s.letter != nil {
		m.add(s.letter)
	}
	return s.letter
}
