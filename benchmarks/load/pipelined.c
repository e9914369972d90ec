/* pipelined: a client that keeps a window of requests in flight on each connection: sends, or pulls.
 *
 *   pipelined HOST PORT json|binary SIZE WINDOW CONNECTIONS WARM SECONDS BATCH TOPIC [COUNT]
 *   pipelined HOST PORT pull MESSAGES WINDOW CONNECTIONS WARM SECONDS 0 TOPIC COUNT
 *
 * Speaks to a broker directly. Requests are built once for each of four queues; only the request
 * number is patched in. BATCH 0 sends single messages (code 310), BATCH n sends n in one request
 * (code 320). With COUNT it ends after that many messages instead. The topic is made by the first
 * send. A pull asks for so many MESSAGES, of the four queues in turn, from their first offset to COUNT
 * messages in each of them, and then from the first again. Prints {"event":"measuring"} when the warm-up is over and one line of results at the end. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define QUEUES 4
#define FIRST_OPAQUE 1000000000u /* always ten digits, so that a JSON header keeps its length */
#define RING (1u << 20)
#define OUT_SIZE (8u << 20)
#define IN_SIZE (8u << 20)

typedef struct {
    int fd;
    uint8_t *out, *in;
    size_t out_end, out_sent, in_end;
    uint32_t in_flight;
} Connection;

typedef struct {
    uint8_t *bytes;
    size_t size, opaque_at;
} Frame;

static int binary, pulling, size, batch;
static long queue_end, next_offset[QUEUES]; /* of pulls */
static long *asked_at;
static const char *topic;
static Frame frames[QUEUES];
static double *sent_at;
static float *latencies;
static size_t latency_count, latency_room = 1u << 22;
static uint32_t next_number;
static long answered, refused;
static int measuring;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void put16(uint8_t *p, uint32_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
static void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16); put16(p + 2, v & 0xFFFF); }
static uint32_t get32(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

static void fail(const char *what) { perror(what); exit(1); }

/* The properties of each message; in a JSON header the control characters are escaped. */
static const char *PLAIN = "UNIQ_KEY\001AC1100020CFD18B4AAC2123456780000\002WAIT\001true\002TAGS\001T";
static const char *ESCAPED = "UNIQ_KEY\\u0001AC1100020CFD18B4AAC2123456780000\\u0002WAIT\\u0001true\\u0002TAGS\\u0001T";

static size_t json_header(uint8_t *at, int queue, size_t *opaque_at) {
    int n = sprintf((char *)at,
        "{\"code\":%d,\"extFields\":{\"a\":\"load\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%d\",\"f\":\"0\","
        "\"g\":\"%lld000\",\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\",\"k\":\"false\",\"m\":\"%s\"},\"flag\":0,\"language\":\"JAVA\","
        "\"opaque\":1000000000,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}",
        batch ? 320 : 310, topic, queue, (long long)time(NULL), batch ? "" : ESCAPED, batch ? "true" : "false");
    *opaque_at = (size_t)(strstr((char *)at, "\"opaque\":") - (char *)at) + 9;
    return (size_t)n;
}

static uint8_t *put_field(uint8_t *p, const char *key, const char *value) {
    size_t key_size = strlen(key), value_size = strlen(value);
    put16(p, (uint32_t)key_size);
    memcpy(p + 2, key, key_size);
    put32(p + 2 + key_size, (uint32_t)value_size);
    memcpy(p + 6 + key_size, value, value_size);
    return p + 6 + key_size + value_size;
}

static size_t binary_header(uint8_t *at, int queue, size_t *opaque_at) {
    char queue_text[12], born[24];
    sprintf(queue_text, "%d", queue);
    sprintf(born, "%lld000", (long long)time(NULL));
    put16(at, batch ? 320 : 310);
    at[2] = 0; /* language: Java */
    put16(at + 3, 407);
    put32(at + 9, 0);  /* flag */
    put32(at + 13, 0); /* no remark */
    const char *fields[][2] = {{"a", "load"}, {"b", topic}, {"c", "TBW102"}, {"d", "4"}, {"e", queue_text}, {"f", "0"},
        {"g", born}, {"h", "0"}, {"i", batch ? "" : PLAIN}, {"j", "0"}, {"k", "false"}, {"m", batch ? "true" : "false"}};
    uint8_t *p = at + 21;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (*fields[i][1]) p = put_field(p, fields[i][0], fields[i][1]);
    put32(at + 17, (uint32_t)(p - at - 21));
    *opaque_at = 5;
    return (size_t)(p - at);
}

static uint8_t *batch_body(uint8_t *p) {
    size_t properties = strlen(PLAIN);
    for (int i = 0; i < batch; i++) {
        put32(p, (uint32_t)(22 + size + properties));
        memset(p + 4, 0, 12); /* magic, body crc, flag: not looked at */
        put32(p + 16, (uint32_t)size);
        memset(p + 20, 'x', (size_t)size);
        p += 20 + size;
        put16(p, (uint32_t)properties);
        memcpy(p + 2, PLAIN, properties);
        p += 2 + properties;
    }
    return p;
}

static void build_frames(void) {
    for (int queue = 0; queue < QUEUES; queue++) {
        Frame *frame = &frames[queue];
        frame->bytes = malloc(4096 + (size_t)(batch ? batch : 1) * (size_t)(size + 256));
        uint8_t *header = frame->bytes + 8;
        size_t n = binary ? binary_header(header, queue, &frame->opaque_at) : json_header(header, queue, &frame->opaque_at);
        uint8_t *body = header + n;
        uint8_t *end = batch ? batch_body(body) : (uint8_t *)memset(body, 'x', (size_t)size) + size;
        frame->opaque_at += 8;
        frame->size = (size_t)(end - frame->bytes);
        put32(frame->bytes, (uint32_t)(frame->size - 4));
        put32(frame->bytes + 4, (uint32_t)n | (binary ? 1u << 24 : 0));
    }
}

static void open_connection(Connection *c, const char *host, int port, int poll) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&address, sizeof address)) fail("connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->out = malloc(OUT_SIZE);
    c->in = malloc(IN_SIZE);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
}

static void append_pull(Connection *c, double time) {
    int queue = (int)(next_number % QUEUES);
    uint8_t *frame = c->out + c->out_end;
    if (next_offset[queue] + size > queue_end) next_offset[queue] = 0;
    int n = sprintf((char *)frame + 8,
        "{\"code\":11,\"extFields\":{\"consumerGroup\":\"load\",\"topic\":\"%s\",\"queueId\":\"%d\",\"queueOffset\":\"%ld\","
        "\"maxMsgNums\":\"%d\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\",\"subscription\":\"*\","
        "\"subVersion\":\"0\",\"expressionType\":\"TAG\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}",
        topic, queue, next_offset[queue], size, FIRST_OPAQUE + next_number % RING);
    put32(frame, (uint32_t)n + 4);
    put32(frame + 4, (uint32_t)n);
    asked_at[next_number % RING] = next_offset[queue];
    sent_at[next_number++ % RING] = time;
    next_offset[queue] += size;
    c->out_end += (size_t)n + 8;
    c->in_flight++;
}

static void append_request(Connection *c, double time) {
    if (pulling) {
        append_pull(c, time);
        return;
    }
    Frame *frame = &frames[next_number % QUEUES];
    memcpy(c->out + c->out_end, frame->bytes, frame->size);
    uint8_t *opaque = c->out + c->out_end + frame->opaque_at;
    uint32_t number = FIRST_OPAQUE + next_number % RING;
    if (binary) put32(opaque, number);
    else for (int digit = 9; digit >= 0; digit--, number /= 10) opaque[digit] = (uint8_t)('0' + number % 10);
    sent_at[next_number++ % RING] = time;
    c->out_end += frame->size;
    c->in_flight++;
}

static void fill_and_send(Connection *c, uint32_t window, double time) {
    if (c->out_sent == c->out_end) {
        c->out_sent = c->out_end = 0;
        while (c->in_flight < window && c->out_end < OUT_SIZE / 2) append_request(c, time);
    }
    if (c->out_sent < c->out_end) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_end - c->out_sent, MSG_NOSIGNAL);
        if (n > 0) c->out_sent += (size_t)n;
        else if (errno != EAGAIN) fail("send");
    }
}

/* Reads the two header fields that count: the response code and the request number. */
static void read_answer(const uint8_t *header, size_t n, uint32_t kind, double time) {
    uint32_t code, number = 0;
    if (kind) {
        code = (uint32_t)header[0] << 8 | header[1];
        number = get32(header + 5);
    } else {
        const char *code_at = memmem(header, n, "\"code\":", 7), *opaque_at = memmem(header, n, "\"opaque\":", 9);
        if (!code_at || !opaque_at) { fprintf(stderr, "answer without code: %.*s\n", (int)n, header); exit(1); }
        code = (uint32_t)atoi(code_at + 7);
        number = (uint32_t)strtoul(opaque_at + 9, NULL, 10);
    }
    if (code != 0) {
        if (refused++ == 0) fprintf(stderr, "refused: %.*s\n", (int)n, header);
        return;
    }
    if (pulling) {
        const char *next_at = memmem(header, n, "\"nextBeginOffset\":\"", 19);
        answered += next_at ? atol(next_at + 19) - asked_at[(number - FIRST_OPAQUE) % RING] : 0;
    } else answered += batch ? batch : 1;
    if (measuring && latency_count < latency_room)
        latencies[latency_count++] = (float)(time - sent_at[(number - FIRST_OPAQUE) % RING]);
}

static void receive(Connection *c) {
    for (;;) {
        ssize_t n = recv(c->fd, c->in + c->in_end, IN_SIZE - c->in_end, 0);
        if (n == 0) { fprintf(stderr, "the broker closed the connection\n"); exit(1); }
        if (n < 0) return;
        c->in_end += (size_t)n;
        size_t at = 0;
        double time = now();
        while (c->in_end - at >= 4) {
            uint32_t length = get32(c->in + at);
            if (c->in_end - at < length + 4) break;
            uint32_t marked = get32(c->in + at + 4);
            read_answer(c->in + at + 8, marked & 0xFFFFFF, marked >> 24, time);
            c->in_flight--;
            at += length + 4;
        }
        memmove(c->in, c->in + at, c->in_end - at);
        c->in_end -= at;
    }
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double percentile_us(double share) {
    return latency_count ? latencies[(size_t)((double)(latency_count - 1) * share)] * 1e6 : 0;
}

int main(int argc, char **argv) {
    if (argc < 11) { fprintf(stderr, "usage: see the head of pipelined.c\n"); return 2; }
    binary = !strcmp(argv[3], "binary");
    pulling = !strcmp(argv[3], "pull");
    size = atoi(argv[4]);
    uint32_t window = (uint32_t)atoi(argv[5]);
    int count = atoi(argv[6]);
    double warm = atof(argv[7]), seconds = atof(argv[8]);
    batch = atoi(argv[9]);
    topic = argv[10];
    long stop_after = argc > 11 ? atol(argv[11]) : 0;

    if (pulling) {
        queue_end = stop_after;
        stop_after = 0;
        if (queue_end < size) { fprintf(stderr, "pulls need COUNT messages in each queue\n"); return 2; }
    } else build_frames();
    sent_at = calloc(RING, sizeof *sent_at);
    asked_at = calloc(RING, sizeof *asked_at);
    latencies = malloc(latency_room * sizeof *latencies);
    Connection *connections = calloc((size_t)count, sizeof *connections);
    int poll = epoll_create1(0);
    for (int i = 0; i < count; i++) open_connection(&connections[i], argv[1], atoi(argv[2]), poll);

    double begin = now(), begin_measuring = begin + warm, end = begin_measuring + seconds;
    long answered_before = 0;
    struct epoll_event events[64];
    for (;;) {
        double time = now();
        if (!measuring && time >= begin_measuring) {
            measuring = 1;
            begin = time;
            answered_before = answered;
            printf("{\"event\":\"measuring\"}\n");
            fflush(stdout);
        }
        if (time >= end || (stop_after && answered >= stop_after)) break;
        for (int i = 0; i < count; i++) fill_and_send(&connections[i], window, time);
        int n = epoll_wait(poll, events, 64, 100);
        for (int i = 0; i < n; i++) receive(events[i].data.ptr);
    }
    double elapsed = now() - begin;
    qsort(latencies, latency_count, sizeof *latencies, ascending);
    printf("{\"messages\":%ld,\"seconds\":%.3f,\"rate\":%.0f,\"errors\":%ld,\"p50_us\":%.1f,\"p99_us\":%.1f}\n",
        answered - answered_before, elapsed, (double)(answered - answered_before) / elapsed, refused,
        percentile_us(0.5), percentile_us(0.99));
    return refused ? 1 : 0;
}
