package benchmarks

import "github.com/gobwas/glob"

// globLoop tries one compiled glob after the other.
func globLoop(patterns []string) func(types []string) {
	var globs []*glob.Pattern
	for _, p := range patterns {
		globs = append(globs, glob.MustCompile(p, '.'))
	}
	return func(types []string) {
		for _, typ := range types {
			matches = matches[:0]
			for i, g := range globs {
				if g.Match(typ) {
					matches = append(matches, i)
				}
			}
		}
	}
}

var matches []int
