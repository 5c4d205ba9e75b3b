// The smallest HTTP server for Node.js.
const http = require("node:http");

const page = "0123456789abcdef".repeat(4);
const server = http.createServer((request, response) => response.end(page));
server.keepAliveTimeout = 60000;
server.listen(Number(process.argv[2]), "127.0.0.1");
