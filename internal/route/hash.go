package route

import (
	"hash/maphash"
	"math/bits"
)

var typeStart, typeFactor = maphash.String(seed, "start"), maphash.String(seed, "factor") | 1

// hashType is that of a type for the cache and the doorkeeper, in half the time that
// hashOf takes. Types that collide, which nobody can choose without knowing the seed,
// would do no more than push each other out there.
func hashType(typ string) uint64 {
	if len(typ) < 8 {
		return hashOf(typ)
	}
	h, last := typeStart^uint64(len(typ))*typeFactor, len(typ)-8
	for i := 0; i < last; i += 8 {
		h = fold(h ^ word(typ, i))
	}
	return fold(h ^ word(typ, last)) // it may overlap the one before
}

// fold multiplies, and adds what overflows to the rest: so that each bit of the result
// depends on each of x.
func fold(x uint64) uint64 {
	high, low := bits.Mul64(x, typeFactor)
	return high ^ low
}

// word returns the eight bytes of text from i on, with one load from memory.
func word(text string, i int) uint64 {
	b := text[i : i+8]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}
