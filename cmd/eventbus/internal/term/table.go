package term

import (
	"io"
	"slices"
	"strings"
)

// Table is a table of texts. The zero value has no columns.
type Table struct {
	columns []Column
	rows    [][]string
}

// Column is the head of a column.
type Column struct {
	Name string
	// Min is the width to which the column may shrink, in columns of the terminal. 0: it does not shrink.
	Min int
	// Right aligns the column to the right.
	Right bool
	// Drop leaves the column out of a table that does not fit otherwise, the rightmost such column first.
	Drop bool
	// Wrap continues the texts of the last column on up to 8 lines. It shrinks only after the other columns have shrunk, and
	// after those with Drop were left out for its Min.
	Wrap bool
}

// wrapped is the number of lines of a text in a column with Wrap.
const wrapped = 8

// NewTable returns a table without rows.
func NewTable(columns ...Column) *Table { return &Table{columns: columns} }

// Add adds a row. It escapes the texts.
func (t *Table) Add(cells ...string) {
	row := make([]string, len(t.columns))
	for i, c := range cells {
		row[i] = Escape(c)
	}
	t.rows = append(t.rows, row)
}

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

const gap = 2

// Write writes the table. If it is wider than columns, it shortens the cells of the columns with a Min,
// the widest one first. If that is not enough, it leaves columns out. 0 columns stand for no limit.
func (t *Table) Write(w io.Writer, columns int) error {
	widths := make([]int, len(t.columns)) // -1: left out
	for i, c := range t.columns {
		widths[i] = Width(c.Name)
		for _, row := range t.rows {
			widths[i] = max(widths[i], Width(row[i]))
		}
	}
	if columns > 0 {
		t.drop(widths, columns)
		t.shrink(widths, columns)
	}
	var b strings.Builder
	names := make([]string, len(t.columns))
	for i, c := range t.columns {
		names[i] = c.Name
	}
	t.line(&b, names, widths)
	for _, row := range t.rows {
		t.line(&b, row, widths)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// drop leaves out columns until the others fit at their smallest widths.
func (t *Table) drop(widths []int, columns int) {
	for {
		total, last := -gap, -1
		for i, c := range t.columns {
			if widths[i] < 0 {
				continue
			}
			smallest := widths[i]
			if c.Min > 0 {
				smallest = min(smallest, c.Min)
			}
			total += gap + smallest
			if c.Drop {
				last = i
			}
		}
		if total <= columns || last < 0 {
			return
		}
		widths[last] = -1
	}
}

// shrink reduces the widths to a total, as far as the columns allow it.
func (t *Table) shrink(widths []int, columns int) {
	total := -gap
	for _, n := range widths {
		if n >= 0 {
			total += gap + n
		}
	}
	for ; total > columns; total-- {
		widest := t.widest(widths, false)
		if widest < 0 {
			widest = t.widest(widths, true)
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// narrowest is the width to which a column with Wrap shrinks in a terminal that is too narrow for its Min.
const narrowest = 8

// widest returns the widest column of those that wrap, or of the others, that can shrink, or -1.
func (t *Table) widest(widths []int, wrap bool) int {
	widest := -1
	for i, c := range t.columns {
		least := c.Min
		if wrap {
			least = narrowest
		}
		if c.Wrap == wrap && c.Min > 0 && widths[i] > least && (widest < 0 || widths[i] > widths[widest]) {
			widest = i
		}
	}
	return widest
}

func (t *Table) line(b *strings.Builder, cells []string, widths []int) {
	last := len(cells) - 1
	if !t.columns[last].Wrap || Width(cells[last]) <= widths[last] {
		t.plainLine(b, cells, widths)
		return
	}
	for n, part := range Wrap(cells[last], widths[last], wrapped) {
		if n > 0 {
			cells = make([]string, last+1)
		}
		t.plainLine(b, append(slices.Clone(cells[:last]), part), widths)
	}
}

func (t *Table) plainLine(b *strings.Builder, cells []string, widths []int) {
	var text strings.Builder
	for i, cell := range cells {
		if widths[i] < 0 {
			continue
		}
		if text.Len() > 0 {
			text.WriteString(strings.Repeat(" ", gap))
		}
		cell = Cut(cell, widths[i])
		pad := strings.Repeat(" ", widths[i]-Width(cell))
		if t.columns[i].Right {
			cell = pad + cell
		} else {
			cell += pad
		}
		text.WriteString(cell)
	}
	b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
}
