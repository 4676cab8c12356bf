package sim

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder walks a YAML document and collects errors that name file, line and field.
type decoder struct {
	source string
	errs   []error
}

// field is how one key of a mapping is read.
type field struct {
	required bool
	read     func(n *yaml.Node, path string)
}

// fail notes an error at a node. path is "" for the document itself.
func (d *decoder) fail(n *yaml.Node, path, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if path != "" {
		message = path + ": " + message
	}
	d.errs = append(d.errs, fmt.Errorf("%s:%d: %s", d.source, max(n.Line, 1), message))
}

// err joins what was collected, in the order of the document's walk.
func (d *decoder) err() error { return errors.Join(d.errs...) }

// document parses YAML and hands over its one root node, nil after an error.
func (d *decoder) document(data []byte) *yaml.Node {
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		d.errs = append(d.errs, fmt.Errorf("%s: not YAML: %w", d.source, err))
		return nil
	}
	if root.Kind != yaml.DocumentNode || len(root.Content) != 1 {
		d.errs = append(d.errs, fmt.Errorf("%s:1: the profile is empty", d.source))
		return nil
	}
	return root.Content[0]
}

// object reads a mapping. A key that is unknown, given twice or missing is an error.
func (d *decoder) object(n *yaml.Node, path string, fields map[string]field) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "want fields (name: value), found %s", kindName(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		f, ok := fields[key.Value]
		switch {
		case !ok || key.Kind != yaml.ScalarNode:
			d.fail(key, at, "unknown field; known here: %s", strings.Join(sortedKeys(fields), ", "))
		case seen[key.Value]:
			d.fail(key, at, "given twice")
		default:
			seen[key.Value] = true
			f.read(value, at)
		}
	}
	for _, name := range sortedKeys(fields) {
		if fields[name].required && !seen[name] {
			d.fail(n, join(path, name), "missing")
		}
	}
}

// list reads a sequence of at most limit items.
func (d *decoder) list(n *yaml.Node, path string, limit int, item func(n *yaml.Node, path string)) {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, "want a list, found %s", kindName(n))
		return
	}
	if len(n.Content) > limit {
		d.fail(n, path, "%d items, at most %d are possible", len(n.Content), limit)
		return
	}
	for i, child := range n.Content {
		item(child, fmt.Sprintf("%s[%d]", path, i))
	}
}

// text reads a scalar that is not empty.
func (d *decoder) text(n *yaml.Node, path string) (string, bool) {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		d.fail(n, path, "want a text, found %s", kindName(n))
		return "", false
	}
	if strings.TrimSpace(n.Value) == "" || strings.ContainsAny(n.Value, "\n\x00") {
		d.fail(n, path, "want a text of one line that is not empty")
		return "", false
	}
	return n.Value, true
}

// whole reads an integer between low and high, both included. Hexadecimal is 0x….
func (d *decoder) whole(n *yaml.Node, path string, low, high int64) (int64, bool) {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
		d.fail(n, path, "want a whole number, found %s", kindName(n))
		return 0, false
	}
	value, err := strconv.ParseInt(n.Value, 0, 64)
	if err != nil {
		d.fail(n, path, "%q is not a whole number", n.Value)
		return 0, false
	}
	if value < low || value > high {
		d.fail(n, path, "%d is outside %d to %d", value, low, high)
		return 0, false
	}
	return value, true
}

// truth reads true or false.
func (d *decoder) truth(n *yaml.Node, path string) (value, ok bool) {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(&value) != nil {
		d.fail(n, path, "want true or false, found %s", kindName(n))
		return false, false
	}
	return value, true
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "nothing"
		}
		return strconv.Quote(n.Value)
	default:
		return "something else"
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
