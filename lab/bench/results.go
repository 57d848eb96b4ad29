// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// results are the measurements of one run.
type results struct {
	Machine string `json:"machine"`
	Date    string `json:"date"`
	Rows    []*row `json:"rows"`
}

// row is one measured quantity, with the values of a plugin and of its peer.
type row struct {
	Plugin   string  `json:"plugin"`
	Measured string  `json:"measured"`
	Value    float64 `json:"value"` // the median of the plugin; PeerHas: of the peer
	Peer     string  `json:"peer"`
	PeerHas  float64 `json:"peer_value"`
	Unit     string  `json:"unit"`
	Ratio    string  `json:"ratio"` // of the plugin: "6.1× faster"

	values [2][]float64 // measurements of the plugin and of the peer
}

// add adds one measurement of the plugin (side 0) or of its peer (side 1).
func (r *results) add(pair [2]string, measured, unit string, side int, value float64) {
	i := slices.IndexFunc(r.Rows, func(row *row) bool {
		return row.Plugin == pair[0] && row.Peer == pair[1] && row.Measured == measured
	})
	if i < 0 {
		i = len(r.Rows)
		r.Rows = append(r.Rows, &row{Plugin: pair[0], Peer: pair[1], Measured: measured, Unit: unit})
	}
	r.Rows[i].values[side] = append(r.Rows[i].values[side], value)
}

// print computes the medians and ratios, and prints the rows as a table.
func (r *results) print(w io.Writer) error {
	r.Machine, r.Date = machine(), time.Now().Format(time.DateOnly)
	table := [][]string{{"plugin", "measured", "", "peer", "", "ratio"}}
	for _, row := range r.Rows {
		row.Value, row.PeerHas = rounded(median(row.values[0])), rounded(median(row.values[1]))
		row.Ratio = ratio(row.Value, row.PeerHas, row.Unit)
		table = append(table, []string{row.Plugin, row.Measured, show(row.Value, row.Unit), row.Peer,
			show(row.PeerHas, row.Unit), row.Ratio})
	}
	fmt.Fprintf(w, "\n%s\n\n", r.Machine)
	return term.Table(w, table...)
}

func (r *results) write(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// ratio compares a value with its peer's. It is empty if one of them is zero or less, which is within the noise.
func ratio(value, peer float64, unit string) string {
	better, worse := "less", "more"
	if unit == "ms" {
		better, worse = "faster", "slower"
	}
	if value <= 0 || peer <= 0 {
		return ""
	}
	times, word := peer/value, better
	if times < 1 {
		times, word = value/peer, worse
	}
	if times >= 10 {
		return fmt.Sprintf("%.0f× %s", times, word)
	}
	return fmt.Sprintf("%.1f× %s", times, word)
}

func show(value float64, unit string) string {
	if value >= 100 || value <= -100 {
		return fmt.Sprintf("%.0f %s", value, unit)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// machine returns the properties of this machine that influence the results.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail
	release := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	return fmt.Sprintf("%d cores, %s, Linux %s, cgroup %s", runtime.NumCPU(), runtime.GOARCH,
		strings.Join(release[:min(2, len(release))], "."), []string{"off", "v1", "v2"}[cgroupslib.GetMode()])
}

func rounded(f float64) float64 { return math.Round(100*f) / 100 }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// median returns the median: of an even number of values, the lower of the two in the middle; of none, zero.
func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(list))[(len(list)-1)/2]
}
