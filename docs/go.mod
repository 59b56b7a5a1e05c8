module github.com/surebus/eventbus/docs

go 1.26.0
