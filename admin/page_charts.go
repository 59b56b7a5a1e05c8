package admin

import (
	"fmt"
	"time"

	"github.com/surebus/eventbus/internal/chart"
)

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
	bars := func(c chart.Bars) chartView { return barChart(c, " a minute", from) }
	throughput := bars(chart.StackedBars(chartWidth, chartHeight, historyMinutes, chart.Series{Name: "first", Values: values(handled)}))
	throughput.Title, throughput.Summary = "Throughput", fmt.Sprintf("%s dispatches handled, %s in this minute", count(sum(handled)), count(last.Handled))
	throughput.Keys = []chartKey{{"", "handled"}}

	failed := bars(chart.StackedBars(chartWidth, chartHeight, historyMinutes,
		chart.Series{Name: "second", Values: values(dead)}, chart.Series{Name: "third", Values: values(failures)}))
	failed.Title, failed.Summary = "Failures", fmt.Sprintf("%s failed calls, %s dead letters", count(sum(failures)), count(sum(dead)))
	failed.Keys = []chartKey{{"third", "failed calls"}, {"second", "dead letters"}}

	slowest := latencyChart(historyMinutes, values(p50), values(p99), from)
	slowest.Summary = fmt.Sprintf("p50 %s, p99 %s now, of the slowest subscription", latency(last.P50), latency(last.P99))
	return []chartView{throughput, failed, slowest}
}

func barChart(c chart.Bars, unit, from string) chartView {
	return chartView{Width: c.Width, Height: c.Height, Half: c.Height / 2, Bars: c.Bars, Top: count(int64(c.Top)) + unit, From: from, To: "now"}
}

// latencyChart returns a chart of durations, without its summary.
func latencyChart(columns int, p50, p99 []float64, from string) chartView {
	curves := chart.Curves(chartWidth, chartHeight, columns, chart.Series{Name: "second", Values: p99}, chart.Series{Name: "first", Values: p50})
	return chartView{
		Title: "Latency", Width: curves.Width, Height: curves.Height, Half: curves.Height / 2, Lines: curves.Lines,
		Top: duration(time.Duration(curves.Top)), From: from, To: "now", Keys: []chartKey{{"second", "p99"}, {"", "p50"}},
	}
}

// subscriptionCharts returns the charts of a subscription.
func subscriptionCharts(h SubscriptionHistory) []chartView {
	if len(h.Points) == 0 {
		return nil
	}
	var calls, failures, backlog, p50, p99 []float64
	var sumCalls, sumFailures, most int64
	for _, p := range h.Points {
		calls, failures, backlog = append(calls, float64(p.Calls-p.Failures)), append(failures, float64(p.Failures)), append(backlog, float64(p.Backlog))
		p50, p99 = append(p50, float64(p.P50)), append(p99, float64(p.P99))
		sumCalls, sumFailures, most = sumCalls+p.Calls, sumFailures+p.Failures, max(most, p.Backlog)
	}
	columns, unit := historyMinutes, " a minute"
	if h.Step > time.Minute {
		columns, unit = dayPoints, " in 15 minutes"
	}
	last := h.Points[len(h.Points)-1]
	from := last.Start.Add(-time.Duration(columns-1) * h.Step).Format("15:04")
	shape := func(series ...chart.Series) chart.Bars {
		return chart.StackedBars(chartWidth, chartHeight, columns, series...)
	}

	all := barChart(shape(chart.Series{Name: "second", Values: failures}, chart.Series{Name: "first", Values: calls}), unit, from)
	all.Title, all.Summary = "Calls", count(sumCalls)+" calls, "+count(last.Calls)+" now"
	all.Keys = []chartKey{{"", "succeeded"}, {"second", "failed"}}

	failed := barChart(shape(chart.Series{Name: "second", Values: failures}), unit, from)
	failed.Title, failed.Summary = "Failures", count(sumFailures)+" failed calls, "+percent(share(sumFailures, sumCalls))
	failed.Keys = []chartKey{{"second", "failed"}}

	times := latencyChart(columns, p50, p99, from)
	times.Summary = "p50 " + latency(last.P50) + ", p99 " + latency(last.P99) + " now"

	parked := barChart(shape(chart.Series{Name: "third", Values: backlog}), "", from)
	parked.Title, parked.Summary = "Backlog", count(last.Backlog)+" parked now, at most "+count(most)
	parked.Keys = []chartKey{{"third", "parked"}}
	return []chartView{all, failed, times, parked}
}

// Size of the chart in a row of a table.
const (
	sparkWidth  = 120
	sparkHeight = 20
)

// sparkOf returns the last hour of a subscription in one line.
func sparkOf(f *SubscriptionFigures) chartView {
	var good, bad []float64
	for _, p := range f.minutes {
		good, bad = append(good, float64(p.calls-p.failures)), append(bad, float64(p.failures))
	}
	v := barChart(chart.StackedBars(sparkWidth, sparkHeight, historyMinutes, chart.Series{Name: "second", Values: bad}, chart.Series{Name: "first", Values: good}), "", "")
	v.Title = "The last hour by minutes"
	v.Summary = count(f.Calls) + " calls, " + count(f.Failures) + " failed, at most " + v.Top + " a minute"
	return v
}
