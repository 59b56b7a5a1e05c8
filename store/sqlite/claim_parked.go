package sqlite

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

const (
	fromParked   = "FROM eventbus_record INDEXED BY record_parked WHERE " + whereParked + " AND door = ? AND "
	fromDirected = "FROM eventbus_record INDEXED BY eventbus_record_destination WHERE " + whereDirected + " AND door = ? AND destination = "
)

// parkedPart is a part of an index: parked records of an owner, by Position.
type parkedPart struct {
	from  string // with parameters for args
	args  []any
	owner int64
	first int64 // no record has a smaller Position
}

// parked returns the records of ClaimParked.
func (f *finder) parked() (found []candidate, err error) {
	var parts []parkedPart
	for _, door := range f.q.Doors {
		err := f.eachOwner(fromParked, []any{door}, func(owner int64) error {
			of, err := f.partsOf(door, owner)
			parts = append(parts, of...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(parts, func(a, b parkedPart) int { return cmp.Compare(a.first, b.first) })
	last := int64(math.MaxInt64) // records behind this Position are beyond the limit
	for _, p := range parts {
		if p.first > last {
			break
		}
		if err := f.collectPart(&found, p, last); err != nil {
			return nil, err
		}
		if n := f.q.Limit; len(found)/2 > n {
			slices.SortFunc(found, compareCandidates)
			found, last = found[:n+1], found[n].at
		}
	}
	return found, nil
}

// collectPart adds the first records of a part.
func (f *finder) collectPart(found *[]candidate, p parkedPart, last int64) error {
	where, args := p.from+"owner = ? AND position <= ?", append(slices.Clone(p.args), p.owner, last)
	if p.owner != -f.state.epoch { // ClaimReady claims those with a key
		where, args = where+" AND kind = ?", append(args, int64(driver.Parked))
	}
	return f.collect(found, candidate{}, "SELECT position, ref, owner "+where+" ORDER BY position, ref LIMIT ?", append(args, f.q.Limit+1)...)
}

// partsOf returns the parts of a door and an owner that the query selects. Each of Destinations is a part of its own, so that the
// query does not read the records of other destinations. It reads those of OtherThan, and skips them one by one.
func (f *finder) partsOf(door string, owner int64) (parts []parkedPart, err error) {
	all := parkedPart{from: fromParked, args: []any{door}, owner: owner, first: math.MinInt64}
	switch {
	case len(f.q.OtherThan) > 0:
		all.from += "coalesce(destination, '') NOT IN (SELECT value FROM json_each(?)) AND "
		all.args = append(all.args, f.list(f.q.OtherThan))
		return []parkedPart{all}, nil
	case len(f.q.Destinations) == 0:
		return []parkedPart{all}, nil
	case slices.Contains(f.q.Destinations, ""):
		all.from += "destination IS NULL AND "
		parts = append(parts, all)
	}
	const sql = "SELECT value, (SELECT position " + fromDirected + "value AND owner = ? ORDER BY position LIMIT 1) AS first FROM json_each(?) WHERE first IS NOT NULL"
	err = query(f.c, sql, func(stmt *sqlite3.Stmt) error {
		of := parkedPart{from: fromDirected + "? AND ", args: []any{door, stmt.ColumnText(0)}, owner: owner, first: stmt.ColumnInt64(1)}
		parts = append(parts, of)
		return nil
	}, door, owner, f.list(f.q.Destinations))
	return parts, err
}

// list returns destinations in JSON. It leaves out names that no record can have: JSON would change them into other names.
func (f *finder) list(destinations []string) string {
	if f.destinations == "" {
		texts := slices.DeleteFunc(slices.Clone(destinations), func(text string) bool {
			return !utf8.ValidString(text) || strings.ContainsRune(text, 0)
		})
		list, _ := json.Marshal(texts) // strings only
		f.destinations = string(list)
	}
	return f.destinations
}
