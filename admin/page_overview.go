package admin

import (
	"fmt"
	"time"

	"github.com/surebus/eventbus/internal/chart"
)

// overviewBody is the data of the overview.
type overviewBody struct {
	Overview
	Attention    []concern
	Charts       []chartView
	Ledger       []account
	Types        []typeRow
	TypesCaption string
}

func (c *call) overviewPage() (any, error) {
	if _, err := c.filters(); err != nil {
		return nil, err
	}
	o := c.overview(c.ctx)
	if c.tool {
		o.Metrics.Orphaned = nil // whether a subscription exists, only the other bus knows
	}
	body := overviewBody{
		Overview: o, Attention: concernsOf(&o.Metrics, c.prefix), Charts: chartsOf(o.History), Ledger: accountsOf(&o.Metrics.Ledger),
	}
	body.Types, body.TypesCaption = typeRowsOf(o.Metrics.Types, c.prefix)
	return c.show("overview", &page{Title: "Overview", Section: sectionOverview, Refresh: 10, Body: body}, nil)
}

// chartView is a chart with its texts.
type chartView struct {
	Title, Summary      string
	Width, Height, Half int
	Bars                []chart.Bar
	Lines               []chart.Line
	Top, From, To       string
	Keys                []chartKey
}

type chartKey struct{ Class, Name string }

// Size of the charts, in units of their own. Their width on the page is the browser's.
const (
	chartWidth  = 300
	chartHeight = 60
)

// chartsOf returns the charts of a history.
func chartsOf(minutes []Minute) []chartView {
	values := func(of func(*Minute) int64) []float64 {
		all := make([]float64, len(minutes))
		for i := range minutes {
			all[i] = float64(of(&minutes[i]))
		}
		return all
	}
	sum := func(of func(*Minute) int64) (n int64) {
		for i := range minutes {
			n += of(&minutes[i])
		}
		return n
	}
	handled := func(m *Minute) int64 { return m.Handled }
	failures := func(m *Minute) int64 { return m.Failures }
	dead := func(m *Minute) int64 { return m.DeadLettered }
	p50 := func(m *Minute) int64 { return int64(m.P50) }
	p99 := func(m *Minute) int64 { return int64(m.P99) }

	var last Minute
	from := ""
	if n := len(minutes); n > 0 {
		last, from = minutes[n-1], minutes[0].Start.Format("15:04")
		if span := historyMinutes - n; span > 0 { // the first minutes are before the handler existed
			from = minutes[n-1].Start.Add(-(historyMinutes - 1) * time.Minute).Format("15:04")
		}
	}
	bars := func(c chart.Bars) chartView {
		return chartView{Width: c.Width, Height: c.Height, Half: c.Height / 2, Bars: c.Bars, Top: count(int64(c.Top)) + " a minute", From: from, To: "now"}
	}
	throughput := bars(chart.StackedBars(chartWidth, chartHeight, historyMinutes, chart.Series{Name: "first", Values: values(handled)}))
	throughput.Title, throughput.Summary = "Throughput", fmt.Sprintf("%s dispatches handled, %s in this minute", count(sum(handled)), count(last.Handled))
	throughput.Keys = []chartKey{{"", "handled"}}

	failed := bars(chart.StackedBars(chartWidth, chartHeight, historyMinutes,
		chart.Series{Name: "second", Values: values(dead)}, chart.Series{Name: "third", Values: values(failures)}))
	failed.Title, failed.Summary = "Failures", fmt.Sprintf("%s failed calls, %s dead letters", count(sum(failures)), count(sum(dead)))
	failed.Keys = []chartKey{{"third", "failed calls"}, {"second", "dead letters"}}

	curves := chart.Curves(chartWidth, chartHeight, historyMinutes,
		chart.Series{Name: "second", Values: values(p99)}, chart.Series{Name: "first", Values: values(p50)})
	latency := chartView{
		Title: "Latency", Summary: fmt.Sprintf("p50 %s, p99 %s, of the slowest subscription", duration(last.P50), duration(last.P99)),
		Width: curves.Width, Height: curves.Height, Half: curves.Height / 2, Lines: curves.Lines,
		Top: duration(time.Duration(curves.Top)), From: from, To: "now", Keys: []chartKey{{"second", "p99"}, {"", "p50"}},
	}
	return []chartView{throughput, failed, latency}
}
