// Package chart computes the geometry of small charts. A template draws it as inline SVG, with
// attributes and classes only.
package chart

import (
	"math"
	"strconv"
	"strings"
)

// Series is a row of values with a name. Values that are not finite and negative values count as 0.
type Series struct {
	Name   string // also its CSS class
	Values []float64
}

// Bars is a bar chart. The bars of a position are stacked, the first series at the bottom.
type Bars struct {
	Width, Height int // of the viewBox
	Top           float64
	Bars          []Bar
}

// Bar is one rectangle.
type Bar struct {
	Series              string
	X, Y, Width, Height string
}

// StackedBars returns a chart of size columns, in a box of width by height. The last values are at the right
// end. Top is the value at the upper edge: 1, 2 or 5 times a power of 10, at least 1.
func StackedBars(width, height, columns int, series ...Series) Bars {
	c := Bars{Width: width, Height: height}
	sums := make([]float64, columns)
	for _, s := range series {
		for i, v := range last(s.Values, columns) {
			sums[columns-min(len(s.Values), columns)+i] += clean(v)
		}
	}
	c.Top = ceiling(sums)
	step := float64(width) / float64(max(columns, 1))
	below := make([]float64, columns)
	for _, s := range series {
		values := last(s.Values, columns)
		for i, v := range values {
			at := columns - len(values) + i
			tall := clean(v) / c.Top * float64(height)
			if tall == 0 {
				continue
			}
			tall = max(tall, 0.5) // a single failure among thousands must be seen
			c.Bars = append(c.Bars, Bar{
				Series: s.Name, X: number(float64(at)*step + step*0.1), Width: number(step * 0.8),
				Y: number(max(float64(height)-below[at]-tall, 0)), Height: number(tall),
			})
			below[at] += tall
		}
	}
	return c
}

// Lines is a line chart.
type Lines struct {
	Width, Height int // of the viewBox
	Top           float64
	Lines         []Line
}

// Line is one polyline.
type Line struct{ Series, Points string }

// Curves returns a chart of lines with size columns, in a box of width by height, as StackedBars does.
func Curves(width, height, columns int, series ...Series) Lines {
	c := Lines{Width: width, Height: height}
	var all []float64
	for _, s := range series {
		for _, v := range last(s.Values, columns) {
			all = append(all, clean(v))
		}
	}
	c.Top = ceiling(all)
	step := float64(width) / float64(max(columns, 1))
	for _, s := range series {
		values := last(s.Values, columns)
		points := make([]string, len(values))
		for i, v := range values {
			at := columns - len(values) + i
			points[i] = number((float64(at)+0.5)*step) + "," + number(float64(height)*(1-clean(v)/c.Top))
		}
		if len(points) == 1 { // a line needs two points
			_, y, _ := strings.Cut(points[0], ",")
			points = []string{number(float64(width)-step) + "," + y, number(float64(width)) + "," + y}
		}
		if len(points) > 0 {
			c.Lines = append(c.Lines, Line{s.Name, strings.Join(points, " ")})
		}
	}
	return c
}

func last(values []float64, n int) []float64 { return values[max(len(values)-n, 0):] }

func clean(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0
	}
	return v
}

// ceiling returns the smallest 1, 2 or 5 times a power of 10 that is at least 1 and at least every value.
func ceiling(values []float64) float64 {
	top := 1.0
	for _, v := range values {
		for top < v {
			switch first := strconv.FormatFloat(top, 'e', 0, 64)[0]; first {
			case '2':
				top *= 2.5
			default:
				top *= 2
			}
		}
	}
	return top
}

// number formats a coordinate with at most two decimals: a page may have hundreds.
func number(v float64) string {
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}
