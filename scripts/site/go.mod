module github.com/surebus/eventbus/scripts/site

go 1.26.0

require github.com/yuin/goldmark v1.8.7

require github.com/surebus/eventbus v0.0.0

require (
	github.com/benbjohnson/clock v1.3.5 // indirect
	github.com/gobwas/glob v1.1.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	go.uber.org/multierr v1.10.0 // indirect
	go.uber.org/zap v1.28.0 // indirect
)

require (
	github.com/stretchr/testify v1.12.1
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/surebus/eventbus => ../..
