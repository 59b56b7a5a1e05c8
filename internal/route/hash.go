package route

import (
	"hash/maphash"
	"math/bits"
)

// seed makes hashes unpredictable: nobody can choose types that collide.
var seed = maphash.MakeSeed()

var hashStart, hashFactor = maphash.String(seed, "start"), maphash.String(seed, "factor") | 1

// shortText is the length up to which no two texts have the same hash.
const shortText = 8

// hashOf is that of a text in a byText.
func hashOf(text string) uint64 {
	return hashSegment(text, short(text)) // which is not looked at if text is not short
}

// hashSegment is hashOf for what cutSegment has returned.
func hashSegment(text string, bytes uint64) uint64 {
	if len(text) > shortText {
		return maphash.String(seed, text)
	}
	// Each step can be undone, so nothing is lost. A product spreads the bits upwards: the
	// second one begins with what was highest.
	return bits.ReverseBytes64((bytes^hashStart)*hashFactor) * hashFactor
}

// short returns the bytes of a short text in one word, the first in the lowest: another
// one for each text, as none has a byte that is 0.
func short(text string) uint64 {
	switch n := len(text); {
	case n >= 4: // the halves may overlap, and agree where they do
		return uint64(half(text, 0)) | uint64(half(text, n-4))<<(8*(n-4))
	case n > 0:
		return uint64(text[0]) | uint64(text[n/2])<<(8*(n/2)) | uint64(text[n-1])<<(8*(n-1))
	}
	return 0
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

// word returns the eight bytes of text from i on, with one load from memory.
func word(text string, i int) uint64 {
	b := text[i : i+8]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

func half(text string, i int) uint32 {
	b := text[i : i+4]
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}
