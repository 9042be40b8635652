package delaymq.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * RocketMQ's own clients, controlled by JSON lines: each input line is a command, each output line a response or event.
 *
 * <p>In: {"id":1,"op":"producer.send",...}. Out: {"id":1,"result":...} or {"id":1,"error":{...}}, in any order, and
 * {"event":"message","client":"c",...}. Commands run concurrently; the program exits when its input closes.
 */
public final class Main {
    /** Implementation of a command; the result is any value that JSON can represent. */
    @FunctionalInterface
    interface Operation {
        Object run(JSONObject request) throws Exception;
    }

    private final Output output;
    private final Map<String, Operation> operations = new HashMap<>();

    private Main(Output output) {
        this.output = output;
        Clients clients = new Clients();
        Producers producers = new Producers(clients);
        PullTargets pullTargets = new PullTargets(clients);
        PushConsumers pushConsumers = new PushConsumers(clients, output, pullTargets);
        PullConsumers pullConsumers = new PullConsumers(clients);
        LitePullConsumers litePullConsumers = new LitePullConsumers(clients);
        Admin admin = new Admin(clients);
        operations.put("producer.start", producers::start);
        operations.put("producer.send", producers::send);
        operations.put("producer.sendBatch", producers::sendBatch);
        operations.put("producer.queues", producers::queues);
        operations.put("producer.recall", producers::recall);
        operations.put("push.start", pushConsumers::start);
        operations.put("push.suspend", pushConsumers::suspend);
        operations.put("push.resume", pushConsumers::resume);
        operations.put("pull.start", pullConsumers::start);
        operations.put("pull.pull", pullConsumers::pull);
        operations.put("pull.queues", pullConsumers::queues);
        operations.put("pull.offset", pullConsumers::offset);
        operations.put("pull.updateOffset", pullConsumers::updateOffset);
        operations.put("pull.sendBack", pullConsumers::sendBack);
        operations.put("pull.next", pullTargets::next);
        operations.put("push.pulls", pullTargets::pulls);
        operations.put("litePull.start", litePullConsumers::start);
        operations.put("litePull.poll", litePullConsumers::poll);
        operations.put("litePull.queues", litePullConsumers::queues);
        operations.put("litePull.seek", litePullConsumers::seek);
        operations.put("litePull.commit", litePullConsumers::commit);
        operations.put("litePull.committed", litePullConsumers::committed);
        operations.put("admin.start", admin::start);
        operations.put("admin.viewMessage", admin::viewMessage);
        operations.put("admin.queryMessage", admin::queryMessage);
        operations.put("admin.offsets", admin::offsets);
        operations.put("admin.searchOffset", admin::searchOffset);
        operations.put("admin.createTopic", admin::createTopic);
        operations.put("admin.updateTopic", admin::updateTopic);
        operations.put("admin.consumeStats", admin::consumeStats);
        operations.put("admin.consumers", admin::consumers);
        operations.put("admin.call", new AdminCalls(clients)::call);
        operations.put("monitor.round", new Monitoring()::round);
        MqAdmin mqAdmin = new MqAdmin();
        operations.put("mqadmin", mqAdmin::run);
        operations.put("mqadmin.names", mqAdmin::names);
        operations.put("filter.evaluate", new FilterOracle()::evaluate);
        operations.put("members.offsets", new Members(clients)::offsets);
        operations.put("traces.decode", Traces::decode);
        Requests requests = new Requests(clients, output);
        operations.put("request.request", requests::request);
        operations.put("replier.start", requests::start);
        operations.put("replier.outcomes", requests::outcomes);
        Retries retries = new Retries(clients);
        operations.put("retries.sendOwn", retries::sendOwn);
        operations.put("retries.sendBack", retries::sendBack);
        operations.put("floods.send", new Floods(clients)::send);
        operations.put("acl.sign", Acl::sign);
        Transactions transactions = new Transactions(clients, output);
        operations.put("transactions.start", transactions::start);
        operations.put("transactions.send", transactions::send);
        operations.put("transactions.prepare", transactions::prepare);
        operations.put("transactions.end", transactions::end);
        operations.put("transactions.resume", transactions::resume);
        Operators operators = new Operators(clients);
        operations.put("operators.runningInfo", operators::runningInfo);
        operations.put("operators.consumeDirectly", operators::consumeDirectly);
        operations.put("operators.status", operators::status);
        operations.put("operators.reset", operators::reset);
        operations.put("operators.cloneOffsets", operators::cloneOffsets);
        operations.put("operators.corrections", operators::corrections);
        operations.put("operators.statistics", operators::statistics);
        operations.put("operators.consumeTps", operators::consumeTps);
        operations.put("operators.brokerProgress", operators::brokerProgress);
        operations.put("operators.timeSpans", operators::timeSpans);
        operations.put("operators.consumeQueue", operators::consumeQueue);
        operations.put("stop", clients::stop);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream lines = System.out;
        // Output of libraries must not be mixed with responses.
        System.setOut(System.err);
        new Main(new Output(lines)).serve();
        // Some client threads are not daemon threads; nothing is left to do when the commands end.
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws Exception {
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        output.event("ready", Map.of());
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JSONObject request = JSON.parseObject(line);
            workers.execute(() -> answer(request));
        }
    }

    private void answer(JSONObject request) {
        long id = request.getLongValue("id");
        try {
            Operation operation = operations.get(request.getString("op"));
            if (operation == null) {
                throw new IllegalArgumentException("no operation " + request.getString("op"));
            }
            output.result(id, operation.run(request));
        } catch (Throwable e) {
            output.error(id, e);
        }
    }
}
