package tables

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Formats are what Write knows.
var Formats = []string{"text", "json", "csv"}

// Write prints the results and their groups' scores in one of Formats.
func Write(w io.Writer, format string, results []Result) error {
	switch format {
	case "json":
		return writeJSON(w, results)
	case "csv":
		return writeCSV(w, results)
	}
	return writeText(w, results)
}

type jsonGroup struct {
	Name        string   `json:"name"`
	Cells       int      `json:"cells"`
	RMS         float64  `json:"rms_pct"`
	Fitted      *float64 `json:"fitted_rms_pct"`
	HeldOut     *float64 `json:"heldout_rms_pct"`
	OrdersOK    int      `json:"orderings_ok"`
	OrdersTotal int      `json:"orderings_total"`
	Worst       jsonCell `json:"worst"`
}

type jsonCell struct {
	Table    string  `json:"table"`
	Config   string  `json:"config"`
	NumJobs  int     `json:"numjobs"`
	Mean     float64 `json:"published_mean"`
	SD       float64 `json:"published_sd"`
	SimMean  float64 `json:"sim_mean"`
	SimSD    float64 `json:"sim_sd"`
	Residual float64 `json:"residual_pct"`
	Seeds    int     `json:"seeds"`
	Virtual  float64 `json:"virtual_seconds"`
}

func round(v float64, digits float64) float64 {
	p := math.Pow(10, digits)
	return math.Round(v*p) / p
}

func cellOf(r Result) jsonCell {
	return jsonCell{
		Table: r.Table, Config: r.Config, NumJobs: r.NumJobs, Mean: r.Mean, SD: r.SD,
		SimMean: round(r.SimMean, 2), SimSD: round(r.SimSD, 2), Residual: round(r.Residual, 2),
		Seeds: r.Seeds, Virtual: round(r.Virtual, 3),
	}
}

func writeJSON(w io.Writer, results []Result) error {
	var out struct {
		Groups []jsonGroup `json:"groups"`
		Cells  []jsonCell  `json:"cells"`
	}
	for _, g := range Score(results) {
		j := jsonGroup{
			Name: g.Name, Cells: len(g.Results), RMS: round(g.RMS, 3), OrdersOK: g.OrdersOK, OrdersTotal: g.OrderTotal,
			Worst: cellOf(g.Worst),
		}
		if g.HeldOut != nil && g.Fitted != nil {
			f, h := round(*g.Fitted, 3), round(*g.HeldOut, 3)
			j.Fitted, j.HeldOut = &f, &h
		}
		out.Groups = append(out.Groups, j)
	}
	for _, r := range results {
		out.Cells = append(out.Cells, cellOf(r))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(out)
}

func writeCSV(w io.Writer, results []Result) error {
	c := csv.NewWriter(w)
	rows := [][]string{{"table", "config", "numjobs", "published_mean", "published_sd", "sim_mean", "sim_sd", "residual_pct", "seeds", "virtual_seconds"}}
	for _, r := range results {
		f := func(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }
		rows = append(rows, []string{
			r.Table, r.Config, strconv.Itoa(r.NumJobs), f(r.Mean, 2), f(r.SD, 2), f(r.SimMean, 2), f(r.SimSD, 2), f(r.Residual, 2),
			strconv.Itoa(r.Seeds), f(r.Virtual, 3),
		})
	}
	return c.WriteAll(rows)
}

// writeText prints a line a cell, and the scores.
func writeText(w io.Writer, results []Result) error {
	table := ""
	for _, r := range results {
		if r.Table != table {
			table = r.Table
			fmt.Fprintf(w, "\n%s, %s: mean (sd)\n  %-12s %7s %22s %22s %9s\n", table, unitOf(table), "config", "numjobs", "published", "simulated", "residual")
		}
		fmt.Fprintf(w, "  %-12s %7d %22s %22s %+8.1f%%\n", r.Config, r.NumJobs, spread(r.Mean, r.SD), spread(r.SimMean, r.SimSD), r.Residual)
	}
	fmt.Fprintf(w, "\n%-14s %5s %8s %10s %10s %10s  %s\n", "group", "cells", "RMS", "odd jobs", "even jobs", "orderings", "worst cell")
	for _, g := range Score(results) {
		odd, even, orders := "-", "-", "-"
		if g.Fitted != nil && g.HeldOut != nil {
			odd, even = fmt.Sprintf("%.2f%%", *g.Fitted), fmt.Sprintf("%.2f%%", *g.HeldOut)
		}
		if g.OrderTotal > 0 {
			orders = fmt.Sprintf("%d of %d", g.OrdersOK, g.OrderTotal)
		}
		fmt.Fprintf(w, "%-14s %5d %7.2f%% %10s %10s %10s  %s %s %d: %+.1f%%\n", g.Name, len(g.Results), g.RMS, odd, even, orders,
			g.Worst.Table, g.Worst.Config, g.Worst.NumJobs, g.Worst.Residual)
	}
	_, err := fmt.Fprint(w, `
Residuals are simulated against published means. The drive's parameters were fitted to odd job
counts (sim fit); even ones were held out of that fit, though not out of sight while the model
was made: docs/EXPERIMENTS.md. An ordering is a pair of configurations of one row whose published
means differ by more than two pooled standard deviations.
`)
	return err
}

func spread(mean, sd float64) string { return fmt.Sprintf("%.2f (%.2f)", mean, sd) }

func unitOf(table string) string {
	for _, t := range sources {
		if t.Name == table {
			return t.Unit
		}
	}
	return ""
}
