package errchain

import "slices"

// Names are names that were registered for errors.
type Names struct{ registered []named }

type named struct {
	name string
	fits func(error) bool // reports whether one error of a tree has the name
}

// Add registers a name for the errors that fit. The first name that fits an error is its name.
func (n *Names) Add(name string, fits func(error) bool) {
	n.registered = append(n.registered, named{name, fits})
}

// Of returns the names of the errors of a tree, without those of wrappers that have none.
func (n *Names) Of(err error, isWrapper func(error) bool) (names []string) {
	Each(err, func(e error) bool {
		if isWrapper(e) {
			return false
		}
		if name := n.ofOne(e); name != "" {
			names = append(names, name)
		}
		return false
	})
	return names
}

// ofOne returns the name of one error, regardless of the errors that it wraps.
func (n *Names) ofOne(err error) (name string) {
	for _, r := range n.registered {
		if r.fits(err) {
			return r.name
		}
	}
	type namer interface{ Name() string }
	if _, ok := err.(namer); ok { // AskOne alone would also call its As method
		AskOne(err, func(e namer) bool { name = e.Name(); return true })
	}
	if name != "" {
		return name
	}
	return TypeName(err)
}

// Passes reports whether errors with these names are among those included, or all are if include is nil, and none is
// among those excluded.
func Passes(names, include, exclude []string) bool {
	in := func(list []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(list, name) })
	}
	return !in(exclude) && (include == nil || in(include))
}

// Identical compares two errors, one of which may be of a type that cannot be compared.
func Identical(x, y error) (is bool) {
	defer func() { _ = recover() }()
	return x == y //nolint:errorlint // identity is meant
}
