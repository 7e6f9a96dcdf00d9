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

// plot draws how the figures of a scenario grow, each in a panel, on logarithmic scales.
func (b *bench) plot(st *store, sc *scenario, file string) error {
	var panels []*plot.Plot
	for _, f := range sc.columns {
		if titles[f] != "" {
			panels = append(panels, b.panel(st, sc, f, panels == nil))
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

// titles are those of panels; what has none is not drawn.
var titles = map[figure]string{
	rate: "grants a second", commands: "commands per grant",
	goroutines: "goroutines more", memory: "KB per lease", keeping: "µs of processor time per lease and TTL",
}

func (b *bench) panel(st *store, sc *scenario, f figure, legend bool) *plot.Plot {
	p := plot.New()
	p.Title.Text = titles[f]
	p.X.Label.Text = sc.unit[1]
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())
	for i := range st.contenders {
		c := &st.contenders[i]
		if c.not[sc.name] != "" {
			continue
		}
		var points plotter.XYs
		for _, size := range sc.sizes {
			at := cell{store: st.name, scenario: sc.name, size: size, contender: c.name}
			y := b.median(at, f)
			if f == goroutines { // none are drawn as one: a logarithm needs something
				y = max(y, 1)
			}
			if y > 0 {
				points = append(points, plotter.XY{X: float64(size), Y: y})
			}
		}
		line, marks := &plotter.Line{XYs: points}, &plotter.Scatter{XYs: points}
		line.LineStyle = draw.LineStyle{Color: plotutil.Color(i), Width: vg.Points(2)}
		marks.GlyphStyle = draw.GlyphStyle{Color: plotutil.Color(i), Radius: vg.Points(2.5), Shape: plotutil.Shape(i)}
		if points != nil {
			p.Add(line, marks)
		}
		if legend {
			p.Legend.Add(c.name, line, marks)
		}
	}
	if math.IsInf(p.Y.Min, 0) { // nothing was drawn
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1, 10, 1, 10
	}
	p.Y.Min, p.Y.Max = math.Pow10(int(math.Floor(math.Log10(p.Y.Min)))), math.Pow10(int(math.Ceil(math.Log10(p.Y.Max))))
	if p.Y.Max == p.Y.Min { // a range of nothing is widened to below zero
		p.Y.Max *= 10
	}
	p.Legend.Top, p.Legend.Left = true, f == goroutines
	if legend {
		p.Y.Max *= 10 // room for it
	}
	return p
}
