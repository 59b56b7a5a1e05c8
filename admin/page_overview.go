package admin

import (
	"net/url"
)

// overviewBody is the data of the overview.
type overviewBody struct {
	Overview
	CauseRows    []causeRow
	Charts       []chartView
	Ledger       []account
	Types        []typeRow
	TypesCaption string
}

func (c *call) overviewPage() (any, error) {
	if _, err := c.filters(); err != nil {
		return nil, err
	}
	o := c.overview(c.ctx, c.snapshot())
	body := overviewBody{Overview: o, CauseRows: c.causeRows(o.Causes), Charts: chartsOf(o.History), Ledger: accountsOf(&o.Metrics.Ledger)}
	body.Types, body.TypesCaption = typeRowsOf(o.Metrics.Types, c.prefix)
	return c.show("overview", &page{Title: "Overview", Section: sectionOverview, Refresh: 10, Body: body}, nil)
}

// causeRow is a cause with links to its letters and to their replay.
type causeRow struct {
	Cause
	Letters, Replay string
}

func (c *call) causeRows(all []Cause) []causeRow {
	rows := make([]causeRow, len(all))
	for i, cause := range all {
		rows[i] = causeRow{Cause: cause, Letters: c.path("groups")}
		if of := cause.Group.Fingerprint; of != "" {
			filter := url.Values{"fingerprint": {of}}
			rows[i].Letters, rows[i].Replay = linkTo(c.path("letters"), filter), c.bulkLink(string(ReplayMatching), filter)
		}
	}
	return rows
}
