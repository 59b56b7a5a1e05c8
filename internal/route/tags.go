package route

import "math/bits"

// tags has a byte for each of eight places, the first in the lowest: a part of the hash of
// the item there, or 0. One comparison selects the candidate places.
type tags uint64

// tag has its highest bit set, unlike the byte of a free place.
func tag(hash uint64) uint64 { return hash>>56 | 0x80 }

// with returns the tags with the tag of hash at place i.
func (t tags) with(i int, hash uint64) tags {
	return t&^(0xff<<(8*i)) | tags(tag(hash)<<(8*i))
}

// places returns the places with the tag of hash, and rarely another place in use.
func (t tags) places(hash uint64) places {
	return zeros(uint64(t) ^ tag(hash)*eachByte)
}

// places has the highest bit of a byte set for each place. It is 0 if there is none.
type places uint64

func (p places) first() uint64 { return uint64(bits.TrailingZeros64(uint64(p))) / 8 }

func (p places) others() places { return p & (p - 1) }
