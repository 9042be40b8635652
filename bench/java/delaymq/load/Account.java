package delaymq.load;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The account of the program's clients: the system properties load.accessKey and load.secretKey. */
final class Account {
    private static final String ACCESS_KEY = System.getProperty("load.accessKey");
    private static final String SECRET_KEY = System.getProperty("load.secretKey");

    private Account() {
    }

    /** Returns what signs requests, or null without an account. */
    static RPCHook hook() {
        return ACCESS_KEY == null ? null : new AclClientRPCHook(new SessionCredentials(ACCESS_KEY, SECRET_KEY));
    }
}
