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

// name is what the cache knows a type by, beside its length: all of one of up to maxName
// bytes, as much of a longer one. It has no more than four fields, or it would not be kept
// in registers.
type name struct{ first, second, third, last uint64 }

// maxName is the length up to which types of the same length and name are the same.
const maxName = 32

// nameOf returns the name of a type, and its hash for the cache and the doorkeeper, which
// takes less time than hashOf does. Types that collide, which nobody can choose without
// knowing the seed, would do no more than push each other out there.
func nameOf(typ string) (n name, hash uint64) {
	if len(typ) < 8 {
		n.first = short(typ) // bytes that are 0 count, as it is compared with the length
	} else {
		// How long types are is hard to foretell, so most take the same way. Words overlap.
		last := len(typ) - 8
		n = name{word(typ, 0), word(typ, min(8, last)), word(typ, min(16, last)), word(typ, last)}
	}
	h := mix(n.first^hashStart, n.second^uint64(len(typ))*hashFactor)
	for i := 24; i < len(typ)-8; i += 8 {
		h = mix(h^word(typ, i), hashFactor)
	}
	// Twice: what chooses the sets of the cache are few bits, into which few of one product
	// come.
	return n, mix(h^mix(n.third^hashFactor, n.last^hashStart), hashFactor)
}

// mix multiplies, and adds what overflows to the rest: so that each bit of the result
// depends on each of both.
func mix(x, y uint64) uint64 {
	high, low := bits.Mul64(x, y)
	return high ^ low
}
