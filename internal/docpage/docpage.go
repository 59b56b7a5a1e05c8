// Package docpage reads the pages of the documentation: their blocks of code and the output that these print.
package docpage

import (
	"fmt"
	"strings"
)

// Block is a fenced block of Go code.
type Block struct {
	Line   int    // of the opening fence, from 1
	Code   string // without the fences, ends with a newline
	Output string // of the block ```output that follows at once, "" if none does
}

const fence = "```"

// Blocks returns the blocks of Go code of a page. A block of another language is text: only a block ```output, with
// what the code before it prints, belongs to the code.
func Blocks(page string) ([]Block, error) {
	var blocks []Block
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		language, opens := strings.CutPrefix(strings.TrimSpace(lines[i]), fence)
		if !opens {
			continue
		}
		begin, indent := i, lines[i][:strings.Index(lines[i], fence)]
		var text strings.Builder
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != fence; i++ {
			text.WriteString(strings.TrimPrefix(lines[i], indent) + "\n")
		}
		if i == len(lines) {
			return nil, fmt.Errorf("line %d: the block has no end", begin+1)
		}
		switch language {
		case "go":
			blocks = append(blocks, Block{Line: begin + 1, Code: text.String()})
		case "output":
			if len(blocks) == 0 || !follows(lines, begin) {
				return nil, fmt.Errorf("line %d: output follows at once the code that prints it", begin+1)
			}
			blocks[len(blocks)-1].Output = text.String()
		}
	}
	return blocks, nil
}

// follows reports whether only blank lines are between a line and the end of the block before it.
func follows(lines []string, at int) bool {
	for at--; at >= 0 && strings.TrimSpace(lines[at]) == ""; at-- {
	}
	return at >= 0 && strings.TrimSpace(lines[at]) == fence
}
