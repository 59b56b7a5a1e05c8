package eventbus

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// PublishHook is a function that the bus calls around each publication: see WithPublishHook.
//
// The bus calls the hook first, on the caller's goroutine and with its context. method is the caller's name: "Publish",
// "PublishAndWait", "PublishBatch", "PublishTx" or "Emit". e has the type, the payload, and the values of the options
// Key, Metadata, IdempotencyKey and ID, which the bus has not validated yet. Other fields are zero.
//
// The event gets the metadata that the hook returns. Metadata given to Publish takes precedence over it, and it takes
// precedence over WithMetadataFrom and WithInheritedMetadata. The bus leaves out invalid metadata, and metadata beyond
// the limits: a hook never makes a publication fail.
//
// done, unless it is nil, gets the id and the error of the publication before the method returns. The id is zero if the
// event was not accepted. If the publication or a later hook panics, the error reports that.
//
// The hook and done must be quick, must not panic, and may be called concurrently. They must not publish.
type PublishHook func(ctx context.Context, method string, e Event) (metadata map[string]string, done func(EventID, error))

// WithPublishHook adds a hook, for instance one that traces publications. PublishBatch calls it for each of its events. Replays,
// EmitCollected, the events of OnDeadLetter and a batch with ErrBatchTooLarge call none. The bus calls several hooks in the order of the options, and their done
// functions in reverse. Of a name that several hooks add, the last one counts.
func WithPublishHook(hook PublishHook) Option {
	return option(func(c *config) {
		c.refuseIf(hook == nil, "WithPublishHook", "nil", "must be a function")
		c.hooks = append(c.hooks, hook)
	})
}

// hook calls the hooks before a publication. It returns the options of the event, and done, which may be nil.
func (c *config) hook(ctx context.Context, method, eventType string, payload any, opts []PublishOption) (hooked []PublishOption, done func(EventID, error)) {
	var p publication
	for _, o := range opts {
		if o != nil {
			p = o(p)
		}
	}
	e := Event{ID: p.id, Type: eventType, Payload: payload, Key: p.key, Metadata: p.metadata, IdempotencyKey: p.once.key}
	call := c.hooks[0]
	if len(c.hooks) > 1 {
		call = c.callHooks
	}
	metadata, done := call(ctx, method, e)
	if len(metadata) > 0 {
		metadata = maps.Clone(metadata) // the hook may use its map again, for the next event of a batch
		opts = append(slices.Clip(opts), func(p publication) publication {
			p.hooked = metadata
			return p
		})
	}
	return opts, done
}

// callHooks calls several hooks as one. If one panics or ends its goroutine, done is called for those before it.
func (c *config) callHooks(ctx context.Context, method string, e Event) (metadata map[string]string, done func(EventID, error)) {
	var dones []func(EventID, error)
	done = func(id EventID, err error) {
		for _, done := range slices.Backward(dones) {
			done(id, err)
		}
	}
	returned := false
	defer func() {
		if !returned {
			done(EventID{}, errNotReturned)
		}
	}()
	metadata = make(map[string]string)
	for _, hook := range c.hooks {
		more, done := hook(ctx, method, e)
		maps.Copy(metadata, more)
		if done != nil {
			dones = append(dones, done)
		}
	}
	returned = true
	return metadata, done
}

// around calls the hooks around a publication.
func (c *config) around(ctx context.Context, method, eventType string, payload any, opts []PublishOption, publish func([]PublishOption) (EventID, error)) (id EventID, err error) {
	opts, done := c.hook(ctx, method, eventType, payload, opts)
	if done == nil {
		return publish(opts)
	}
	err = errNotReturned
	defer func() { done(id, err) }()
	id, err = publish(opts)
	return id, err
}

// errNotReturned is for hooks if a method of the payload panics, or another hook.
var errNotReturned = errors.New("the publication has panicked, or ended its goroutine")

// aroundBatch calls the hooks around a batch, for each of its publications.
func (c *config) aroundBatch(ctx context.Context, batch []Publication, publish func([]Publication) ([]EventID, error)) (ids []EventID, err error) {
	batch = slices.Clone(batch)
	dones := make([]func(EventID, error), 0, len(batch))
	err = errNotReturned
	defer func() {
		for i, done := range slices.Backward(dones) {
			if done == nil {
				continue
			}
			if len(ids) > i {
				done(ids[i], err)
			} else {
				done(EventID{}, err)
			}
		}
	}()
	for i := range batch {
		p := &batch[i]
		opts, done := c.hook(ctx, "PublishBatch", p.Type, p.Payload, p.Options)
		p.Options, dones = opts, append(dones, done)
	}
	ids, err = publish(batch)
	return ids, err
}

// addHooked adds what hooks have returned, behind the first pairs, which options gave.
func (m *EventMetadata) addHooked(hooked map[string]string, given int) {
	names := slices.AppendSeq(make([]string, 0, 8), maps.Keys(hooked))
	slices.Sort(names)
	for _, name := range names {
		if m.pairs != nil && slices.ContainsFunc((*m.pairs)[:given], func(p metadataPair) bool { return p.name == name }) {
			continue
		}
		_ = m.set(name, hooked[name]) // it leaves out what it refuses
	}
}
