package otellock_test

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDashboard: panels have their own place and number, and use variables that exist.
func TestDashboard(t *testing.T) {
	t.Parallel()
	var dashboard struct {
		Templating struct{ List []struct{ Name string } }
		Panels     []struct {
			ID         int
			Title      string
			Datasource struct{ UID string }
			GridPos    struct{ X, Y, W, H int }
		}
	}
	text := read(t, "grafana.json")
	require.NoError(t, json.Unmarshal([]byte(text), &dashboard))
	variables := map[string]bool{"__rate_interval": true, "__range": true, "__all": true}
	for _, v := range dashboard.Templating.List {
		variables[v.Name] = true
	}
	for _, used := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(text, -1) {
		assert.True(t, variables[used[1]], "there is no variable %s", used[1])
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		assert.False(t, ids[p.ID], "two panels have the number %d", p.ID)
		ids[p.ID] = true
		assert.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				place := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				assert.Empty(t, taken[place], "%s is on another panel", p.Title)
				taken[place] = p.Title
			}
		}
	}
}
