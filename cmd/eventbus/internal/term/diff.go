package term

import "strings"

// maxDiffLines bounds the lines that Diff compares, since its time is the product of both numbers.
const maxDiffLines = 2000

// Diff returns the lines of two texts with "-" before those only in old, "+" before those only in new, and
// a space before the others. It returns "" for equal texts.
func Diff(old, now string) string {
	if old == now {
		return ""
	}
	x, y := splitLines(old), splitLines(now)
	var b strings.Builder
	if len(x) > maxDiffLines || len(y) > maxDiffLines {
		writeLines(&b, "-", x)
		writeLines(&b, "+", y)
		return b.String()
	}
	common := commonLines(x, y)
	i, j := 0, 0
	for i < len(x) || j < len(y) {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			writeLines(&b, " ", x[i:i+1])
			i++
			j++
		case j == len(y) || i < len(x) && common[i+1][j] >= common[i][j+1]:
			writeLines(&b, "-", x[i:i+1])
			i++
		default:
			writeLines(&b, "+", y[j:j+1])
			j++
		}
	}
	return b.String()
}

// commonLines returns, for each pair of suffixes, the length of their longest common subsequence.
func commonLines(x, y []string) [][]int {
	common := make([][]int, len(x)+1)
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	return common
}

func splitLines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

func writeLines(b *strings.Builder, sign string, lines []string) {
	for _, l := range lines {
		b.WriteString(sign + " " + l + "\n")
	}
}
