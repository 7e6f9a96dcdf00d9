package measure

import (
	"fmt"
	"io"
	"slices"
)

// Print writes a line for each side: the median of its figures, and its comparisons.
// The format is for one figure, with its unit.
func Print(w io.Writer, format string, sides ...*Side) {
	width := 0
	for _, s := range sides {
		width = max(width, len(s.Name))
	}
	for i, s := range sides {
		figure := Median(s.Figures)
		line := fmt.Sprintf("  %-*s  "+format, width, s.Name, figure) + s.Goal.Verdict(figure)
		against := s.Against
		if len(against) == 0 && i > 0 {
			against = []Comparison{{To: sides[0], By: "the first"}}
		}
		for _, c := range against {
			line += "   " + c.line(s)
		}
		_, _ = fmt.Fprintln(w, line)
	}
}

func (c Comparison) line(s *Side) string {
	by := c.By
	if by == "" {
		by = c.To.Name
	}
	ratios := Ratios(s.Figures, c.To.Figures)
	ratio := Median(ratios)
	lo, hi := Spread(ratios)
	return fmt.Sprintf("ratio to %s %.2f (%.2f to %.2f)", by, ratio, lo, hi) + c.Goal.Verdict(ratio)
}

// Ratios are those of the figures of the same round.
func Ratios(xs, base []float64) []float64 {
	ratios := make([]float64, min(len(xs), len(base)))
	for i := range ratios {
		ratios[i] = xs[i] / base[i]
	}
	return ratios
}

// Median of an odd or even number of figures.
func Median(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Spread is the smallest and the largest figure.
func Spread(xs []float64) (lo, hi float64) {
	if len(xs) == 0 {
		return 0, 0
	}
	return slices.Min(xs), slices.Max(xs)
}

// Quantile is the figure below which the part q of all figures is.
func Quantile(xs []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	if len(s) == 0 {
		return 0
	}
	return s[min(int(q*float64(len(s))), len(s)-1)]
}
