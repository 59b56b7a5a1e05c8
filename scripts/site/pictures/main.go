// Command pictures draws the pictures of the documentation: docs/pictures/*.svg.
//
//	go run ./scripts/site/pictures
//
// It is run in the root of the repository. A name of code in a picture comes from a reference to that code, so a renamed
// option breaks the build. The tests fail while a committed file differs from what the program draws.
package main

import (
	"flag"
	"log"
	"os"
	"path/filepath"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("pictures: ")
	root := flag.String("C", ".", "the root `directory` of the repository")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("unknown argument %q", flag.Arg(0))
	}
	if err := write(*root); err != nil {
		log.Fatal(err)
	}
}

// directory has the pictures, in the repository.
const directory = "docs/pictures"

func write(root string) error {
	figures, err := draw(root)
	if err != nil {
		return err
	}
	to := filepath.Join(root, filepath.FromSlash(directory))
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, f := range figures {
		if err := os.WriteFile(filepath.Join(to, f.file), f.svg(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// draw returns all pictures. It reads the names of constants in the sources below root.
func draw(root string) ([]*figure, error) {
	constants, err := readConstants(root)
	if err != nil {
		return nil, err
	}
	return []*figure{life(), isolation(), door(constants), crash(), processes()}, nil
}
