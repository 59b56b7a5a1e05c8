package route

import "unicode"

// minLetters is how many letters a pattern needs beside its wildcards: shorter patterns are near to too many types.
const minLetters = 4

// Edits returns how many letters of a type would have to change for the pattern to match it: 0 if
// only case differs, or 1 for a letter that is missing, added or replaced, or for two neighbours that
// changed places. near is false for more edits, and for a pattern with fewer than 4 letters. A class
// counts as ?.
func (p *Pattern) Edits(typ string) (edits int, near bool) {
	edits = 2
	text := []rune(typ)
	for i := range text {
		text[i] = unicode.ToLower(text[i])
	}
	for _, v := range p.variants {
		if tokens, letters := v.tokens(); letters >= minLetters {
			edits = min(edits, editsOf(tokens, text))
		}
	}
	return edits, edits < 2
}

// Tokens that stand for more than their own letter.
const (
	anyLetter  rune = -1
	anyLetters rune = -2 // of a segment
	anyText    rune = -3
)

// tokens returns the pattern's letters and wildcards, and the number of letters.
func (v variant) tokens() (tokens []rune, letters int) {
	for i := range v {
		s := &v[i]
		many := s.kind == anyMany || i > 0 && v[i-1].kind == anyMany
		if i > 0 && !many { // ** stands for the dot beside it, too
			tokens = append(tokens, '.')
		}
		switch s.kind {
		case anyMany:
			tokens = append(tokens, anyText)
			continue
		case anyOne:
			tokens = append(tokens, anyLetters)
			continue
		case literal, partial:
		}
		class := false
		for _, r := range s.text {
			switch {
			case class:
				class = r != ']'
			case s.kind == partial && r == '[':
				class = true
				tokens = append(tokens, anyLetter)
			case s.kind == partial && r == '?':
				tokens = append(tokens, anyLetter)
			case s.kind == partial && r == '*':
				tokens = append(tokens, anyLetters)
			default:
				tokens = append(tokens, unicode.ToLower(r))
				letters++
			}
		}
	}
	return tokens, letters
}

// editsOf returns the edits between tokens and a text, or 2 if there are more. It fills the table of Wagner and Fischer by
// rows, one for each token.
func editsOf(tokens, text []rune) int {
	const far = 2
	before, row, next := make([]int, len(text)+1), make([]int, len(text)+1), make([]int, len(text)+1)
	for j := range row {
		row[j] = min(j, far)
	}
	for i, token := range tokens {
		least := far
		for j := range next {
			next[j] = min(far, row[j]+1) // the token is missing in the text
			if token <= anyLetters {
				next[j] = row[j]
			}
			if j > 0 {
				next[j] = min(next[j], stepOf(token, text[j-1], row[j-1], next[j-1]))
			}
			if j > 1 && i > 0 && token == text[j-2] && tokens[i-1] == text[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
			least = min(least, next[j])
		}
		if least == far {
			return far
		}
		before, row, next = row, next, before
	}
	return row[len(text)]
}

// stepOf returns the edits after a letter: diagonal are those before the token and the letter, and left those before the
// letter.
func stepOf(token, letter rune, diagonal, left int) int {
	switch {
	case token == anyText, token == anyLetters && letter != '.':
		return left
	case token == letter, token == anyLetter && letter != '.':
		return diagonal
	}
	return min(diagonal, left) + 1
}
