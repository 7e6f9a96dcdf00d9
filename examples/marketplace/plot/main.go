// Plot draws the table of the marketplace example as an SVG file: how much each way
// bought, on a logarithmic scale. It is a module of its own, so that nobody else needs
// the library that draws.
//
//	make plot
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "plot: name a file to write, with the table on the input")
		os.Exit(2)
	}
	t, err := read(os.Stdin)
	if err == nil {
		err = t.draw(os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// table is what was bought in each way, by crowd.
type table struct {
	crowds, ways []string
	bought       map[string][]float64 // by way
}

// read takes the lines of the table, and leaves the rest alone.
func read(in io.Reader) (t table, err error) {
	t.bought = map[string][]float64{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		cells := strings.Split(lines.Text(), "|")
		if len(cells) != 8 {
			continue
		}
		crowd, way := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		n, err := strconv.Atoi(strings.TrimSpace(cells[4]))
		if err != nil {
			continue // the heading
		}
		if !slices.Contains(t.crowds, crowd) {
			t.crowds = append(t.crowds, crowd)
		}
		if !slices.Contains(t.ways, way) {
			t.ways = append(t.ways, way)
		}
		t.bought[way] = append(t.bought[way], float64(n))
	}
	for _, way := range t.ways {
		if len(t.bought[way]) != len(t.crowds) {
			return t, fmt.Errorf("the way %q has no line for some crowds: give the whole table", way)
		}
	}
	if len(t.ways) == 0 {
		err = errors.New("there is no table on the input: give it what make marketplace prints")
	}
	return t, errors.Join(err, lines.Err())
}

// draw writes the file, whose ending says in which format.
func (t table) draw(file string) error {
	p := plot.New()
	p.Title.Text = "Items bought"
	p.X.Label.Text = "sellers x buyers"
	p.NominalX(t.crowds...)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for i, way := range t.ways {
		points := make(plotter.XYs, len(t.crowds))
		for crowd, n := range t.bought[way] {
			points[crowd] = plotter.XY{X: float64(crowd), Y: max(n, 1)} // a logarithm needs something
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(2)
		marks.Color, marks.Shape = plotutil.Color(i), plotutil.Shape(i)
		p.Add(line, marks)
		p.Legend.Add(way, line, marks)
	}
	p.Y.Max *= 10 // room for the legend
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, file)
}
