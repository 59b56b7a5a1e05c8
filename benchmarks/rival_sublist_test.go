package benchmarks

import (
	"reflect"
	"unsafe"

	"github.com/nats-io/nats-server/v2/server"
)

// sublistMatcher is what a NATS server routes with. Its subscriptions can be made
// by the server only, so their subject is set by reflection.
func sublistMatcher(cache bool) func(patterns []string) func(types []string) {
	return func(patterns []string) func(types []string) {
		list := server.NewSublist(cache)
		for _, p := range patterns {
			if p[len(p)-2:] == "**" {
				p = p[:len(p)-2] + ">" // one or more segments
			}
			check(insert(list.Insert, p))
		}
		return func(types []string) {
			for _, typ := range types {
				matched = list.Match(typ)
			}
		}
	}
}

var matched *server.SublistResult

func insert[S any](into func(*S) error, subject string) error {
	sub := new(S)
	field := reflect.ValueOf(sub).Elem().FieldByName("subject")
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().SetBytes([]byte(subject))
	return into(sub)
}
