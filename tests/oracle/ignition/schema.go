package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"sort"
	"strings"

	v20 "github.com/coreos/ignition/config/v2_0/types"
	v21 "github.com/coreos/ignition/config/v2_1/types"
	v22 "github.com/coreos/ignition/config/v2_2/types"
	v23 "github.com/coreos/ignition/config/v2_3/types"
	v24 "github.com/coreos/ignition/config/v2_4/types"
	v30 "github.com/coreos/ignition/v2/config/v3_0/types"
	v31 "github.com/coreos/ignition/v2/config/v3_1/types"
	v32 "github.com/coreos/ignition/v2/config/v3_2/types"
	v33 "github.com/coreos/ignition/v2/config/v3_3/types"
	v34 "github.com/coreos/ignition/v2/config/v3_4/types"
	v35 "github.com/coreos/ignition/v2/config/v3_5/types"
	v36 "github.com/coreos/ignition/v2/config/v3_6/types"
)

// versions are the root types of every version, by major number and in the order of the minor numbers.
var versions = map[int][]any{
	2: {v20.Config{}, v21.Config{}, v22.Config{}, v23.Config{}, v24.Config{}},
	3: {v30.Config{}, v31.Config{}, v32.Config{}, v33.Config{}, v34.Config{}, v35.Config{}, v36.Config{}},
}

// schema writes one line for each key of each object: where the object is, the key, and the minor versions
// of Ignition 2 and 3 that know it.
func schema(out io.Writer) {
	keys := map[string]map[int][]int{}
	for major, roots := range versions {
		for minor, root := range roots {
			walk(reflect.TypeOf(root), "", func(key string) {
				if keys[key] == nil {
					keys[key] = map[int][]int{}
				}
				keys[key][major] = append(keys[key][major], minor)
			})
		}
	}
	lines := make([]string, 0, len(keys))
	for key, known := range keys {
		lines = append(lines, fmt.Sprintf("%s %s %s", key, span(known[2]), span(known[3])))
	}
	sort.Strings(lines)
	fmt.Fprintln(out, strings.Join(lines, "\n"))
}

// unmarshaler is what reads its text itself, whatever its fields.
var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// walk calls found with the place and the name of every key that encoding/json would read into a type.
func walk(of reflect.Type, place string, found func(string)) {
	if reflect.PointerTo(of).Implements(unmarshaler) {
		return
	}
	switch of.Kind() {
	case reflect.Pointer:
		walk(of.Elem(), place, found)
	case reflect.Slice:
		walk(of.Elem(), place+"[]", found)
	case reflect.Struct:
		for _, field := range reflect.VisibleFields(of) {
			tag, tagged := field.Tag.Lookup("json")
			name, _, _ := strings.Cut(tag, ",")
			if !field.IsExported() || field.Anonymous && !tagged || name == "-" || len(field.Index) > 1 && !promoted(of, field) {
				continue
			}
			if name == "" {
				name = field.Name
			}
			shown := place
			if shown == "" {
				shown = "."
			}
			found(shown + " " + name)
			walk(field.Type, strings.TrimPrefix(place+"."+name, "."), found)
		}
	}
}

// promoted says whether every struct on the way to the field is embedded without a name of its own.
func promoted(of reflect.Type, field reflect.StructField) bool {
	for _, index := range field.Index[:len(field.Index)-1] {
		step := of.Field(index)
		if _, tagged := step.Tag.Lookup("json"); tagged {
			return false
		}
		of = step.Type
		for of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
	}
	return true
}

// span writes ascending minor versions as "1-4", or "-" for none.
func span(minors []int) string {
	if len(minors) == 0 {
		return "-"
	}
	sort.Ints(minors)
	first, last := minors[0], minors[len(minors)-1]
	if last-first+1 != len(minors) {
		panic(fmt.Sprint("a key that left and came back: ", minors))
	}
	return fmt.Sprintf("%d-%d", first, last)
}
