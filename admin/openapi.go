package admin

import (
	_ "embed" // openapi.json
)

// openAPI describes the API, as OpenAPI 3.1. go test ./admin -run TestOpenAPI -args -update writes it.
//
//go:embed openapi.json
var openAPI []byte

func (c *call) getOpenAPI() (any, error) {
	c.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	c.setWriteDeadline(answerTimeout)
	_, _ = c.w.Write(openAPI) // the peer may have gone
	return nil, nil
}
