// Program cdi prints what the library of the container device interface makes of spec files: one JSON verdict for
// each case on standard input, in the same order. A case is one JSON object, see the type Case.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Case holds the spec files of both directories by name, those of lower priority first.
type Case struct {
	Dirs [2]map[string][]byte `json:"dirs"`
}

// Verdict is what the library makes of them.
type Verdict struct {
	// Refused says why, for each file that is refused, by the index of its directory and its name.
	Refused [2]map[string]string `json:"refused"`
	// Devices are those that can be asked for, by their qualified names, with their device nodes on the host.
	Devices map[string][]Node `json:"devices"`
}

// Node is a device node of a device. Numbers that are not given are absent.
type Node struct {
	Host        string  `json:"host"`
	Inside      string  `json:"inside"`
	Permissions string  `json:"permissions"`
	FileMode    *uint32 `json:"fileMode"`
	Major       int64   `json:"major"`
	Minor       int64   `json:"minor"`
	UID         *uint32 `json:"uid"`
	GID         *uint32 `json:"gid"`
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	for decoder.More() {
		var one Case
		check("the case cannot be read", decoder.Decode(&one))
		check("the verdict cannot be written", encoder.Encode(judge(one)))
	}
	check("the verdict cannot be written", out.Flush())
}

func check(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "cdi: %s: %v\n", what, err)
		os.Exit(1)
	}
}

func judge(one Case) Verdict {
	top, err := os.MkdirTemp("", "cdi")
	check("no directory can be made", err)
	defer os.RemoveAll(top)
	verdict := Verdict{Devices: map[string][]Node{}}
	var dirs [2]string
	for priority, files := range one.Dirs {
		dirs[priority] = filepath.Join(top, fmt.Sprint(priority))
		check("no directory can be made", os.Mkdir(dirs[priority], 0o755))
		verdict.Refused[priority] = map[string]string{}
		for name, text := range files {
			path := filepath.Join(dirs[priority], name)
			check("a spec cannot be written", os.WriteFile(path, text, 0o644))
			if err := read(path, priority); err != nil {
				verdict.Refused[priority][name] = err.Error()
				// One that ends the reader would end it for the others, too.
				check("a spec cannot be removed", os.Remove(path))
			}
		}
	}
	cache, _ := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(dirs[:]...))
	for _, name := range cache.ListDevices() {
		verdict.Devices[name] = nodes(cache.GetDevice(name))
	}
	return verdict
}

// read reads one file. Some nulls end the library with a panic, which is a refusal, too.
func read(path string, priority int) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	_, err = cdi.ReadSpec(path, priority)
	return err
}

func nodes(device *cdi.Device) []Node {
	nodes := []Node{}
	for _, node := range device.ContainerEdits.DeviceNodes {
		host := node.HostPath
		if host == "" {
			host = node.Path
		}
		nodes = append(nodes, Node{
			Host: host, Inside: node.Path, Permissions: node.Permissions, FileMode: (*uint32)(node.FileMode),
			Major: node.Major, Minor: node.Minor, UID: node.UID, GID: node.GID,
		})
	}
	return nodes
}
