package route

import (
	"math/bits"
	"strings"
)

// A word is eight bytes of text, which are processed at once.

const (
	eachByte = 0x0101_0101_0101_0101
	highBits = 0x80 * eachByte
)

// shortText is the maximum length of a text that is packed into a word.
const shortText = 8

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

// short returns a text packed into a word, the first byte in the lowest place, if it is
// short: another word for each text, as neither types nor patterns have a byte that is 0.
// Of a longer text it returns nothing that means anything.
func short(text string) uint64 {
	switch n := len(text); {
	case n >= 4: // the halves may overlap, and agree where they do
		return uint64(half(text, 0)) | uint64(half(text, n-4))<<(8*(n-4))
	case n > 0:
		return uint64(text[0]) | uint64(text[n/2])<<(8*(n/2)) | uint64(text[n-1])<<(8*(n-1))
	}
	return 0
}

// cutSegment returns the segment of typ that begins at i, packed if it is short and 0 if
// not, and where the next one begins: beyond the end if there is none. Types are of all
// lengths, so it has hardly a branch that depends on them.
func cutSegment(typ string, i int) (text string, packed uint64, next int) {
	if last := len(typ) - 8; last >= 0 {
		begin := min(i, last)
		packed = word(typ, begin) >> (8 * (i - begin))
	} else {
		packed = short(typ) >> (8 * i)
	}
	dot := bits.TrailingZeros64(uint64(zeros(packed^'.'*eachByte))) / 8 // 8 if there is none
	if n := min(dot, len(typ)-i); n < 8 {
		return typ[i : i+n], packed & (1<<(8*n) - 1), i + n + 1
	}
	text = typ[i:]
	if n := strings.IndexByte(text, '.'); n >= 0 {
		text = text[:n]
	}
	if len(text) > shortText {
		packed = 0
	}
	return text, packed, i + len(text) + 1
}

// zeros returns the places of the bytes that are 0, and seldom of one above them: only
// there does the subtraction set a highest bit that was not set. The lowest is right.
func zeros(word uint64) places { return places((word - eachByte) &^ word & highBits) }

// notPlain returns 0 if each byte of text is one of - . / : ; < = > @ ^ _ ` or an ASCII
// letter or digit, with no two dots in a row. There may be more that a type can have.
func notPlain(text uint64) uint64 {
	x := text &^ highBits // so that no sum reaches the next byte
	// The highest bit of a byte is set where it is:
	const from, not = 0x80, 0x7f
	notBelow := x + (from-'-')*eachByte
	above := x + (from-'z'-1)*eachByte
	bracket := (x + (from-'[')*eachByte) &^ (x + (from-'^')*eachByte)
	notQuestion := (x ^ '?'*eachByte) + not*eachByte
	notDot := (x ^ '.'*eachByte) + not*eachByte
	odd := text | above | bracket | ^(notBelow & notQuestion) | ^(notDot|notDot<<8)&^0xff
	return odd & highBits
}
