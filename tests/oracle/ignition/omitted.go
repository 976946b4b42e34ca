package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/coreos/ignition/v2/config/doc"
	"github.com/coreos/ignition/v2/config/v3_6/types"
)

// field is a line of the documentation: indentation, name and description.
var field = regexp.MustCompile(`^( *)\* \*\*_?([^*_]+)_?\*\* \([^)]*\): (.*)$`)

// absence is what a sentence about an absent field contains.
var absence = regexp.MustCompile(`(?i)omitted|unspecified|not specified|must be specified|default`)

// omitted writes the sentences of Ignition's documentation that say what happens if a field is absent: the
// field and the sentence.
func omitted(out io.Writer) error {
	components, err := doc.IgnitionComponents()
	if err != nil {
		return err
	}
	var page strings.Builder
	newest := doc.VariantVersions{doc.IGNITION_VARIANT: types.MaxVersion}
	if err := components.Generate(newest, types.Config{}, nil, &page); err != nil {
		return err
	}
	var path []string
	for line := range strings.Lines(page.String()) {
		parts := field.FindStringSubmatch(strings.TrimSpace(line))
		if parts == nil {
			return fmt.Errorf("not a field: %s", line)
		}
		depth := (len(line) - len(strings.TrimLeft(line, " "))) / 2
		path = append(path[:depth], parts[2])
		for sentence := range strings.SplitSeq(parts[3], ". ") {
			if absence.MatchString(sentence) {
				fmt.Fprintf(out, "%s: %s\n", strings.Join(path, "."), strings.TrimSuffix(sentence, "."))
			}
		}
	}
	return nil
}
