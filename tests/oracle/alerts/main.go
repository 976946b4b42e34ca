// Program alerts prints what Prometheus makes of alert rules and queries: one JSON list of mistakes for each case on
// standard input, in the same order. A case is one JSON object, see the type Case.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// Case holds the content of a rule file, or else a query.
type Case struct {
	Rules string `json:"rules"`
	Query string `json:"query"`
}

func mistakes(given Case) []string {
	found := []string{}
	if given.Rules == "" {
		if _, err := parser.ParseExpr(given.Query); err != nil {
			found = append(found, err.Error())
		}
		return found
	}
	_, errs := rulefmt.Parse([]byte(given.Rules), false)
	for _, err := range errs {
		found = append(found, err.Error())
	}
	return found
}

func main() {
	cases := json.NewDecoder(bufio.NewReader(os.Stdin))
	verdicts := json.NewEncoder(os.Stdout)
	for {
		var given Case
		if err := cases.Decode(&given); err == io.EOF {
			return
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := verdicts.Encode(mistakes(given)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
