// Program ignition prints what the Ignition library makes of configs: one JSON verdict for each case on
// standard input, in the same order. A case is one JSON object, see the type Case. With the argument "schema" it
// prints the keys that each version of the format knows, with "omitted" what the documentation says of absent fields.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// Case is what one machine is given: texts in JSON or YAML, of which each holds Ignition configs or
// MachineConfigs. All of them are merged in this order.
type Case struct {
	Texts []string `json:"texts"`
}

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "schema":
			schema(os.Stdout)
		case "omitted":
			if err := omitted(os.Stdout); err != nil {
				fail("the documentation cannot be read", err)
			}
		}
		return
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	for decoder.More() {
		var one Case
		if err := decoder.Decode(&one); err != nil {
			fail("the case cannot be read", err)
		}
		if err := encoder.Encode(judge(one)); err != nil {
			fail("the verdict cannot be written", err)
		}
	}
	if err := out.Flush(); err != nil {
		fail("the verdict cannot be written", err)
	}
}

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "ignition: %s: %v\n", what, err)
	os.Exit(1)
}
