package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	goccy "github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/mortiselock/lock/config"
)

var update = flag.Bool("update", false, "write the JSON schema of the configuration")

const schemaFile = "lockers.schema.json"

// schema is the part of JSON Schema that is used here.
type schema struct {
	Schema        string             `json:"$schema,omitempty"`
	ID            string             `json:"$id,omitempty"`
	Ref           string             `json:"$ref,omitempty"`
	Title         string             `json:"title,omitempty"`
	Description   string             `json:"description,omitempty"`
	Type          string             `json:"type,omitempty"`
	MinLength     int                `json:"minLength,omitempty"`
	Pattern       string             `json:"pattern,omitempty"`
	Properties    map[string]*schema `json:"properties,omitempty"`
	Required      []string           `json:"required,omitempty"`
	MinProperties int                `json:"minProperties,omitempty"`
	PropertyNames *schema            `json:"propertyNames,omitempty"`
	Additional    any                `json:"additionalProperties,omitempty"` // false, or a schema
	Definitions   map[string]*schema `json:"definitions,omitempty"`
}

// schemaOf makes the schema of a type from its tags and comments.
func schemaOf(typ reflect.Type, comments map[string]string, definitions map[string]*schema) *schema {
	switch {
	case typ == reflect.TypeFor[time.Duration]():
		return &schema{Type: "string", Pattern: `^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`}
	case typ == reflect.TypeFor[config.Section]() && definitions["locker"] == nil:
		definitions["locker"] = &schema{} // not again below
		definitions["locker"] = schemaOf(typ, comments, definitions)
		return &schema{Ref: "#/definitions/locker"}
	case typ.Kind() == reflect.String:
		return &schema{Type: "string", MinLength: 1}
	case typ.Kind() == reflect.Map:
		return &schema{Type: "object", MinProperties: 1, PropertyNames: &schema{MinLength: 1}, Additional: schemaOf(typ.Elem(), comments, definitions)}
	}
	s := &schema{Type: "object", Properties: map[string]*schema{}, Additional: false}
	for field := range typ.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		property := schemaOf(field.Type, comments, definitions)
		property.Description = comments[typ.Name()+"."+field.Name]
		s.Properties[name] = property
		if options != "omitempty" {
			s.Required = append(s.Required, name)
		}
	}
	return s
}

// commentsOfFields are the doc comments of the fields of a file, each on one line.
func commentsOfFields(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	require.NoError(t, err)
	comments := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					comments[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
				}
			}
		}
		return true
	})
	return comments
}

// The schema in the repository is that of the types. Write it with -update.
func TestSchemaIsThatOfTheTypes(t *testing.T) {
	t.Parallel()
	definitions := map[string]*schema{}
	s := schemaOf(reflect.TypeFor[config.Document](), commentsOfFields(t, "section.go"), definitions)
	s.Schema = "http://json-schema.org/draft-07/schema#"
	s.ID = "https://raw.githubusercontent.com/mortiselock/lock/main/config/" + schemaFile
	s.Title = "Lockers of github.com/mortiselock/lock"
	s.Definitions = definitions
	for name, property := range definitions["locker"].Properties {
		assert.NotEmpty(t, property.Description, name)
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	require.NoError(t, e.Encode(s))
	if *update {
		require.NoError(t, os.WriteFile(schemaFile, text.Bytes(), 0o644))
	}
	written, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	assert.Equal(t, text.String(), string(written), "run: go test ./config -run TestSchema -update")
}

// accepts reports whether the schema accepts a document, as an editor would.
func accepts(s, root *schema, v any) bool {
	if s.Ref != "" {
		s = root.Definitions[strings.TrimPrefix(s.Ref, "#/definitions/")]
	}
	switch v := v.(type) {
	case string:
		return (s.Type == "" || s.Type == "string") && len(v) >= s.MinLength && (s.Pattern == "" || regexp.MustCompile(s.Pattern).MatchString(v))
	case map[string]any:
		if s.Type != "object" || len(v) < s.MinProperties {
			return false
		}
		for _, name := range s.Required {
			if _, ok := v[name]; !ok {
				return false
			}
		}
		for name, value := range v {
			of := s.Properties[name]
			if of == nil {
				of, _ = s.Additional.(*schema)
			}
			if of == nil || s.PropertyNames != nil && !accepts(s.PropertyNames, root, name) || !accepts(of, root, value) {
				return false
			}
		}
		return true
	}
	return false
}

// readSchema reads the schema of the repository.
func readSchema(t *testing.T) *schema {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	s := &schema{}
	require.NoError(t, json.Unmarshal(text, s))
	lockers := s.Properties["lockers"]
	again, err := json.Marshal(lockers.Additional)
	require.NoError(t, err)
	each := &schema{}
	require.NoError(t, json.Unmarshal(again, each))
	lockers.Additional = each
	return s
}

// TestOneForm: a file, a section that a YAML library or encoding/json reads, and the schema
// accept and refuse the same.
func TestOneForm(t *testing.T) {
	t.Parallel()
	const closer = "the schema is for editors, and does not say all"
	s := readSchema(t)
	for text, c := range map[string]struct {
		good bool
		but  string // why the schema may differ
	}{
		`{"lockers": {"jobs": {"url": "mem:", "ttl": "30s"}}}`:                      {good: true},
		`{"lockers": {"jobs": {"url": "mem:"}, "b": {"url": "file:/x?ttl=1m30s"}}}`: {good: true},
		`{"lockers": {"jobs": {"url": "redis://:${X}@h", "ttl": "1m30.5s"}}}`:       {good: true},
		`{}`:                                                         {},
		`{"lockers": {}}`:                                            {},
		`{"lockers": {"jobs": {}}}`:                                  {},
		`{"lockers": {"": {"url": "mem:"}}}`:                         {},
		`{"lockers": {"jobs": {"ttl": "30s"}}}`:                      {},
		`{"lockers": {"jobs": {"url": ""}}}`:                         {},
		`{"lockers": {"jobs": {"url": ["hunter2"]}}}`:                {},
		`{"lockers": {"jobs": "hunter2"}}`:                           {},
		`{"lockers": ["hunter2"]}`:                                   {},
		`{"locks": {"jobs": {"url": "hunter2"}}}`:                    {},
		`{"lockers": {"jobs": {"url": "mem:", "tll": "hunter2"}}}`:   {},
		`{"lockers": {"jobs": {"url": "mem:", "URL": "hunter2"}}}`:   {},
		`{"lockers": {"jobs": {"url": "mem:"}}, "other": "hunter2"}`: {},
		`{"lockers": {"jobs": {"url": "mem:", "ttl": "hunter2"}}}`:   {},
		`{"lockers": {"jobs": {"url": "mem:", "ttl": 30}}}`:          {},
		`{"lockers": {"jobs": {"url": "mem:", "ttl": "-30s"}}}`:      {},
		`{"lockers": {"jobs": {"url": "mem:", "ttl": "0s"}}}`:        {but: closer},
		`{"lockers": {"jobs": {"url": "redis://${"}}}`:               {but: closer},
	} {
		var asJSON, asYAML, asGoccy, inApp config.Document
		_, asFile := config.Parse("f", []byte(text))
		errs := map[string]error{
			"file":            asFile,
			"encoding/json":   json.Unmarshal([]byte(text), &asJSON),
			"yaml/v3":         yaml.Unmarshal([]byte(text), &asYAML),
			"goccy/go-yaml":   goccy.Unmarshal([]byte(text), &asGoccy),
			"part of another": yaml.Unmarshal([]byte(`{"listen": ":80", "locks": `+text+`}`), &struct{ Locks *config.Document }{&inApp}),
		}
		for how, err := range errs {
			if c.good {
				assert.NoError(t, err, "%s: %s", how, text)
				continue
			}
			if assert.Error(t, err, "%s: %s", how, text) {
				assert.NotContains(t, err.Error(), "hunter2", "%s shows a value", how)
			}
		}
		if c.good {
			assert.Equal(t, asJSON, asYAML, text)
			assert.Equal(t, asJSON, asGoccy, text)
			assert.Equal(t, asJSON, inApp, text)
			again, err := json.Marshal(asJSON)
			require.NoError(t, err)
			var back config.Document
			require.NoError(t, json.Unmarshal(again, &back), string(again))
			assert.Equal(t, asJSON, back)
			again, err = yaml.Marshal(asYAML)
			require.NoError(t, err)
			back = config.Document{}
			require.NoError(t, yaml.Unmarshal(again, &back), string(again))
			assert.Equal(t, asYAML, back)
		}
		if c.but == "" {
			var v any
			require.NoError(t, json.Unmarshal([]byte(text), &v))
			assert.Equal(t, c.good, accepts(s, s, v), "the schema and %s", text)
		}
	}
	for _, twice := range []string{
		`{"lockers": {"jobs": {"url": "mem:", "url": "hunter2"}}}`,
		`{"lockers": {"jobs": {"url": "mem:"}, "jobs": {"url": "hunter2"}}}`,
	} {
		var d config.Document
		for _, err := range []error{json.Unmarshal([]byte(twice), &d), yaml.Unmarshal([]byte(twice), &d)} {
			if assert.Error(t, err, twice) {
				assert.NotContains(t, err.Error(), "hunter2")
			}
		}
	}
}
