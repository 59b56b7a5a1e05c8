package route

import (
	"hash/maphash"
	"math/bits"
)

// seed makes hashes unpredictable: nobody can choose types that collide.
var seed = maphash.MakeSeed()

var hashStart, hashFactor = maphash.String(seed, "start"), maphash.String(seed, "factor") | 1

// hashOf is that of a text in a byText.
func hashOf(text string) uint64 { return hashSegment(text, short(text)) }

// hashSegment is hashOf for what cutSegment has returned.
func hashSegment(text string, packed uint64) uint64 {
	if len(text) > shortText {
		return maphash.String(seed, text)
	}
	// Each step can be undone, so nothing is lost. A product spreads the bits upwards, and
	// what is chosen by the lowest and told by the highest needs all of them.
	h := (packed ^ hashStart) * hashFactor
	h = (h ^ h>>32) * hashFactor
	return h ^ h>>32
}

// hashType is that of a type for the cache and the doorkeeper, in less time than
// hashOf takes. Types that collide, which nobody can choose without knowing the seed,
// would do no more than push each other out there.
func hashType(typ string) uint64 {
	h := hashStart ^ uint64(len(typ))*hashFactor
	if n := len(typ); n < 8 {
		h ^= short(typ)
	} else {
		// How long types are is hard to foretell, so most take the same way.
		last := n - 8
		h = fold(h ^ word(typ, 0))
		h = fold(h ^ word(typ, min(8, last)))
		for i := 16; i < last; i += 8 {
			h = fold(h ^ word(typ, i))
		}
		h ^= word(typ, last) // it may overlap the one before
	}
	// Twice: with one seed of fifty, types that differ in three digits fell into a few sets
	// of the cache, as those are chosen by few bits, into which few of a product come.
	return fold(fold(h))
}

// fold multiplies, and adds what overflows to the rest: so that each bit of the result
// depends on each of x.
func fold(x uint64) uint64 {
	high, low := bits.Mul64(x, hashFactor)
	return high ^ low
}
