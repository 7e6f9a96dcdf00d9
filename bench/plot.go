package main

import (
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plot draws how the figures of a scenario grow: a panel for each column, all on
// logarithmic scales.
func (b *bench) plot(st *store, sc *scenario, file string) error {
	panels := make([]*plot.Plot, len(sc.columns))
	for i, f := range sc.columns {
		var err error
		if panels[i], err = b.panel(st, sc, f, i == 0); err != nil {
			return err
		}
	}
	width := vg.Length(len(panels)) * 9 * vg.Centimeter
	canvas := vgsvg.New(width, 9*vg.Centimeter)
	tiles := draw.Tiles{Rows: 1, Cols: len(panels), PadX: vg.Centimeter / 2, PadTop: vg.Points(2), PadRight: vg.Points(12)}
	for i, row := range plot.Align([][]*plot.Plot{panels}, tiles, draw.New(canvas))[0] {
		panels[i].Draw(row)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := canvas.WriteTo(out); err != nil {
		return err
	}
	return out.Close()
}

// titles are those of panels.
var titles = map[figure]string{
	rate: "grants a second", commands: "commands per grant",
	goroutines: "goroutines", memory: "KB per lease", keeping: "µs of processor time per lease and TTL",
}

func (b *bench) panel(st *store, sc *scenario, f figure, legend bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = titles[f]
	p.X.Label.Text = sc.unit[1]
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())
	for i, c := range st.in(sc) {
		var points plotter.XYs
		for _, size := range sc.sizes {
			at := cell{store: st.name, scenario: sc.name, size: size, contender: c.name}
			if y := b.median(at, f); y > 0 { // a logarithm needs something
				points = append(points, plotter.XY{X: float64(size), Y: y})
			}
		}
		if points == nil {
			continue
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(2)
		marks.Color, marks.Shape = plotutil.Color(i), plotutil.Shape(i)
		p.Add(line, marks)
		if legend {
			p.Legend.Add(c.name, line, marks)
		}
	}
	if math.IsInf(p.Y.Min, 0) { // nothing was drawn
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1, 10, 1, 10
	}
	p.Legend.Top = true
	if legend {
		p.Y.Max *= 30 // room for the legend
	}
	return p, nil
}
