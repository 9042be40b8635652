package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.common.protocol.header.PullMessageRequestHeader;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Brokers to which consumers send their pulls, and the one intended for the next pull. */
@SuppressWarnings("deprecation")
final class PullTargets {
    private final Clients clients;
    private final Map<String, List<Map<String, Object>>> pulls = new ConcurrentHashMap<>();

    PullTargets(Clients clients) {
        this.clients = clients;
    }

    /** Return the hook of a consumer: it records pulls with recordPulls, and signs requests with credentials. */
    RPCHook hook(JSONObject request) {
        if (!request.getBooleanValue("recordPulls")) {
            return Acl.hook(request);
        }
        List<Map<String, Object>> noted = new CopyOnWriteArrayList<>();
        pulls.put(request.getString("client"), noted);
        return new RPCHook() {
            @Override
            public void doBeforeRequest(String address, RemotingCommand command) {
                if (command.readCustomHeader() instanceof PullMessageRequestHeader pull) {
                    noted.add(Map.of("address", address, "topic", pull.getTopic(), "offset", pull.getQueueOffset()));
                }
            }

            @Override
            public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            }
        };
    }

    /** Return all pulls so far of a consumer started with recordPulls: address, topic, offset. */
    Object pulls(JSONObject request) {
        return pulls.get(request.getString("client"));
    }

    /** Return the broker id for the next pull of a queue, as suggested by the last response. */
    Object next(JSONObject request) {
        return clients.get(request, DefaultMQPullConsumer.class).getDefaultMQPullConsumerImpl().getPullAPIWrapper()
            .recalculatePullFromWhichNode(Messages.queue(request));
    }
}
