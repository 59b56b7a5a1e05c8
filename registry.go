package eventbus

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// registry has the subscriptions that there are. Bus.mu guards it.
//
// A name that stands for none has the subscription's number, and is found by that. A
// map of all names would be half of what the collector does about a subscription: it
// meets them in the order of their hashes there, and waits for memory at each.
type registry struct {
	made  uint64                   // subscriptions, ever
	order []registered             // by their numbers
	gone  int                      // of these
	named map[string]*Subscription // by other names, and those that they have taken over
}

// registered has nil for a subscription that is gone.
type registered struct {
	number       uint64
	subscription *Subscription
}

// find is the subscription that has a name, or has taken it over.
func (r *registry) find(name string) *Subscription {
	if s := r.named[name]; s != nil {
		return s
	}
	number, err := strconv.ParseUint(name[strings.LastIndexByte(name, '#')+1:], 10, 64)
	if err != nil {
		return nil
	}
	if i, ok := r.index(number); ok {
		if s := r.order[i].subscription; s != nil && s.id == name {
			return s
		}
	}
	return nil
}

func (r *registry) index(number uint64) (int, bool) {
	return slices.BinarySearchFunc(r.order, number, func(at registered, number uint64) int {
		return cmp.Compare(at.number, number)
	})
}

// add puts in a subscription with the number that comes next, and names that are free.
func (r *registry) add(s *Subscription) {
	r.made = s.number
	r.order = append(r.order, registered{s.number, s})
	if r.find(s.id) != s {
		r.named[s.id] = s
	}
	for _, name := range s.formerly {
		r.named[name] = s
	}
}

// remove takes out a subscription that is there.
func (r *registry) remove(s *Subscription) {
	delete(r.named, s.id)
	for _, name := range s.formerly {
		delete(r.named, name)
	}
	i, _ := r.index(s.number)
	r.order[i].subscription = nil
	if r.gone++; r.gone > len(r.order)/2 {
		left := make([]registered, 0, len(r.order)-r.gone)
		for _, at := range r.order {
			if at.subscription != nil {
				left = append(left, at)
			}
		}
		r.order, r.gone = left, 0
	}
}

// several reports whether there are two subscriptions or more.
func (r *registry) several() bool { return len(r.order)-r.gone > 1 }

// list is the subscriptions, in the order in which they were made.
func (r *registry) list() []*Subscription {
	all := make([]*Subscription, 0, len(r.order)-r.gone)
	for _, at := range r.order {
		if at.subscription != nil {
			all = append(all, at.subscription)
		}
	}
	return all
}
