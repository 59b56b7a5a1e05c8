package mwl

import (
	"context"
	"maps"

	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// mockProvider is the language's stand-in provider: what it does is a function of
// its arguments alone.
type mockProvider struct{}

func (mockProvider) call(ctx context.Context, x *execution, with map[string]any, payload any) (outcome, map[string]any) {
	metadata, _ := with["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	if text, ok := with["delay"].(string); ok {
		delay, _ := temporal.ParseDuration(text) // its schema asserts the format
		if i := x.wait(ctx, delay); i != nil {
			return i.unwound(), metadata
		}
	}
	if configured, ok := with["failure"].(map[string]any); ok {
		envelope := map[string]any{"type": TypeError}
		maps.Copy(envelope, configured)
		return failed(readFailure(envelope)), metadata
	}
	if v, ok := with["value"]; ok {
		return succeeded(v), metadata
	}
	return succeeded(payload), metadata
}
