module github.com/surebus/eventbus/mwl

go 1.26.0

require (
	cel.dev/cel-go v0.33.2 // indirect
	github.com/benbjohnson/clock v1.3.5 // indirect
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/text v0.22.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
